"""What every room may use: the dataflow graph, the table of element-wise operations, arguments and files.

In: nothing. Out: words that rooms share (`Graph`, `NodeType`, `OPERATIONS`, frozen arrays).
Must not know any other room; imports neither torch nor numba.
"""
