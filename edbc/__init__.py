"""edbc: an ahead-of-time compiler for dynamic neural networks in PyTorch."""

from edbc._version import __version__
from edbc.trace.mark import cell

__all__ = ["__version__", "cell"]
