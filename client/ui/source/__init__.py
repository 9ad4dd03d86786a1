"""Sources of updates: a running node, or a recorded run."""
