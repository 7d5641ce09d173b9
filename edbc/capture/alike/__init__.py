"""Instances that are alike: what tells them apart, and mini-batches joined of the records of others.

In: instances as users have them. Out: Captures, without running `forward`. Must not know how mini-batches execute.
"""
