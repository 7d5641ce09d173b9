"""Training: gradients of a mini-batch, equal to eager's, with the forward's batches run in reverse."""
