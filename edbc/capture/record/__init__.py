"""What a recorded call becomes: a node's type and operands, by way of keys, signatures and special cases.

In: calls of torch functions, cells and leaf modules on stand-ins. Out: a Recording. Must not know mini-batches' graphs.
"""
