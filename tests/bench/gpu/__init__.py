"""A GPU's worker: its speed, its codec, its memory, and a swarm on it."""
