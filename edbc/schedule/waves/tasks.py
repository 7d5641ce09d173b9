"""The columns of a task of a stage, which `waves.stages` makes and the CPU's walk runs."""

BATCH, FIRST, LAST, AFTER, LANE = range(5)
"""A batch, rows of it, how many tasks must be done before, and the thread that should have it, for its caches hold the
weights: by the type's rank in the stage."""
