"""Ragged values: tensors whose size differs between instances, recorded as ranges of rows.

In: calls of torch functions and closed code with ragged arguments. Out: nodes of rows, and values that are rows.
Must not know what becomes of the graph.
"""
