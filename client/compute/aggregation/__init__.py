"""The aggregation rules, one per file."""
