"""What takes all rows of a ragged value at once, whatever their number: functions of runs, and values of two ragged
dimensions.

In: calls of torch functions that no row-wise rule knows. Out: nodes of functions of runs, one for each call, of a type
that does not depend on n. Must not know how a run function is computed.
"""
