"""The model families, one per file, each readable from top to bottom."""
