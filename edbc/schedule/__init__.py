"""Schedules: in which order the nodes of a mini-batch run, and which of them together.

`run` is what a mini-batch needs; `train`, `search` and `select` belong to compiling and are never imported from here.
"""
