"""Stages on a GPU: a schedule as operations on streams, which a CUDA graph per batch size holds, and what they take."""
