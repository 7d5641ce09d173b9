"""What a mini-batch goes through between capture and execution: equal nodes, parts, segments, places, arenas.

In: a Capture and a Schedule. Out: graphs, schedules and Placements that execute, and arenas filled.
Must not know which back end executes.
"""
