"""The version of edbc, alone in a module that imports nothing, so that build tools can read it."""

__version__ = "0.1.0"
