"""Reading the user's code: which methods are closed, which are cells, shadows of models, functions rewritten to record.

In: modules, functions, classes. Out: copies that record, and the marks of what is one node. Must not know graphs.
"""
