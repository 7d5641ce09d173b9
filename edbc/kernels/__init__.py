"""The kernel language: what a cell computes of a row, as values; its steps; its machine code."""
