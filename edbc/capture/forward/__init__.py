"""Running `forward` over the instances of a mini-batch, and joining what they leave to its Graph.

In: a recorder and instances. Out: a Capture. Must not know policies, layouts or plans.
"""
