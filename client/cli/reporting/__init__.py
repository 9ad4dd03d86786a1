"""The report of a run: its facts, from a running volunteer or from the disk, and the page."""
