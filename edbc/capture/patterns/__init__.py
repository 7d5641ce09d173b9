"""Patterns of the dataflow graph that are one type: what a plan says of them, and finding them in what is recorded.

In: patterns, a graph of types as they are recorded. Out: the graph with their nodes as one. Must not know how patterns
are found worth it (`edbc.tools.compile.mining`), nor how anything is executed.
"""
