"""Running mini-batches: a plan bound to a model, and what carries a Capture to outputs.

In: a Plan, a model, instances. Out: outputs, equal to eager's. Must not know how a plan was made: no layout planner, no
learning, no search.

`passes` are what a mini-batch goes through before it executes; `cpu` and `cuda` are back ends; `weights` packs
parameters.
"""
