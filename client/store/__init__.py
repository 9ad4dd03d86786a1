"""State on disk: identity, swarms, checkpoints; and boundary tensors over the memory budget."""
