"""What the user's code handles while it is recorded, and what it keeps: stand-ins, nests, objects, places in code.

In: values of a recording. Out: objects that behave as tensors do. Must not know graphs.
"""
