"""Units as what computes them, alike on every device: weights and their products, steps, and tasks."""
