"""A cell as a graph of values, in which equal values are one object: read, differentiated, interpreted.

In: a lowered cell's Program. Out: values, their adjoint, their numbers in torch. Must not know machine code.
"""
