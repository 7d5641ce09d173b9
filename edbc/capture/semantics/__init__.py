"""What torch says of its functions: shapes, views, random numbers, dtypes under autocast, modes, no data.

In: a torch function and its arguments. Out: facts about the call. Must not know what recording makes of them.
"""
