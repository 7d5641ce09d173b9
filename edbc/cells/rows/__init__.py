"""A cell's operations on the rows of a batch in torch: batched forms, row after row, and the code for few rows.

In: operations and rows. Out: rows. Must not know arenas or schedules.
"""
