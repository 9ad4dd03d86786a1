"""The optimizers, one per file."""
