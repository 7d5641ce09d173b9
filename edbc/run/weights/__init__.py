"""Parameters as products want them: packed, and packed again when they have changed.

In: parameters, files of them, and Programs. Out: packed matrices, by address. Must not know mini-batches.
"""
