"""Reports: figures for people, curves, timelines, and checks for machines and reviewers.

In: outcomes. Out: text, SVG, JSON, XML. Must not measure anything itself.
"""
