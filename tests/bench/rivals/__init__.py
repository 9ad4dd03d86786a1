"""Two volunteers beside one process and beside PyTorch's own pipeline, in turns on this machine."""
