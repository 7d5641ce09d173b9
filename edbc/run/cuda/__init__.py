"""The CUDA back end: one copy up per mini-batch, a few generated Triton kernels per batch, nothing that waits."""
