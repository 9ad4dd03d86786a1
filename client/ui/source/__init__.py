"""The source of updates: a running node."""
