"""What one node of a type computes: its operations, its own batches, its memory, its values, its kernels.

In: the trace of a cell; a layout. Out: a Program, as values (`values`), as steps and machine code (`kernels`), as torch
calls on the rows of a batch (`rows`). Must not know mini-batches: how many rows there are, or where they stand.
"""
