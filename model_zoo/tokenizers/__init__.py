"""The tokenizers, one per file."""
