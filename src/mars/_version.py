"""The version, in one place, readable without importing torch."""

__version__ = "0.1.0"
