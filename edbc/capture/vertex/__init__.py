"""Vertex functions: the second front end, for instances that are arrays. The public face is `edbc.vertex`.

In: a model's vertex functions and instances as arrays. Out: a Capture, as the first front end makes it.
Must not know policies, layouts or plans. Importing this package imports neither torch nor numba.
"""
