"""Captured instances: the record of one instance as a value of plain arrays, joined natively to mini-batches.

    captured = net.capture(instance)        # forward runs once, on stand-ins
    outputs = net([captured, other])        # and never again for this instance

In: recordings of instances. Out: Captures joined of them, files of them. Must not know how mini-batches execute.
See docs/captured.md. Importing this package imports no torch.
"""
