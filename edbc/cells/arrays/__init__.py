"""Functions of whole runs as loops over arrays: told by torch at some lengths, rendered once for all lengths.

In: run functions. Out: functions by address, which run all nodes of a batch. Must not know arenas or schedules.
"""
