"""The kernel language: a cell's values as few steps, and steps as machine code.

In: values. Out: steps, tables of them, functions by address. Must not know schedules: which rows run is the walk's.
"""
