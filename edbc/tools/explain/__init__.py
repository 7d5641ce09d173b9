"""Explaining a plan: what batches with what, what does not and why, as text, page, picture or JSON.

In: a Plan and one mini-batch's run. Out: an Explanation and its renderings. Must not change what it looks at.
"""
