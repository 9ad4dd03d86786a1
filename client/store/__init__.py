"""What outlives a process: identity, swarms, checkpoints; and boundaries past the memory budget."""
