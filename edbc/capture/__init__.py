"""Runs the user's Python on stand-ins for tensors and makes graphs of it.

In: a model and instances. Out: a Capture: the Graph of a mini-batch, what its externals hold, what instances return.
Must not know policies, layouts, plans or how anything is executed.

`code` reads the model's own code; `standins` is what that code handles while it runs; `semantics` is what torch says of
its functions; `record` is what a call becomes; `forward` runs instances and joins them to a Graph. `captured` holds
instances as values, `vertex` is the second front end.
"""
