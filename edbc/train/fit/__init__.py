"""Training a bound plan to the end: epochs, checkpoints and curves; what `edbc train` does."""
