"""Backward passes of types and mini-batches: adjoints as native code, as device launches, by recomputing in torch.

In: a Placement, arenas of the forward pass, gradients of results. Out: gradients of parameters and operands.
Must not know `torch.autograd.Function`: that is `edbc.train`.
"""
