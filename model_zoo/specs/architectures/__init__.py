"""Descriptions of the zoo's architectures, one per file."""
