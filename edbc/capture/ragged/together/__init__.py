"""Mini-batches whose instances are all of forwards that are known: taken in, and recorded, together.

In: instances, the programs of kept forwards. Out: one run for all instances of a program, and a graph of its steps.
Must not know policies or memory: in which order steps run is found from that graph by whoever schedules.
"""
