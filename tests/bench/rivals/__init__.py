"""Our pipeline, chain, averaging and codec beside PyTorch's pipelining and hivemind, in one run."""
