"""The compiler: a model and sample instances in, a Plan out; what batches cost; whether batching is worth it.

In: a model file or a model, instances. Out: a Plan. Must not know the command line.
"""
