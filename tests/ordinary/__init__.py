"""The corpus of ordinary code: programs without a mark, for tests and for `benchmarks/ordinary.py`."""
