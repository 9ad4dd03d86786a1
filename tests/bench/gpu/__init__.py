"""A GPU's worker, measured: its speed, its memory, and a swarm on it."""
