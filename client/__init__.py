"""The volunteer client: everything that touches the world."""

__version__ = "0.1.0"
