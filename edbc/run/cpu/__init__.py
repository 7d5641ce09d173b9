"""The native CPU back end: one walk over a stretch of a schedule in compiled code, by threads that stay.

In: a segment's schedule, its Placement, tables of steps. Out: arenas filled. Must not know capture.
"""
