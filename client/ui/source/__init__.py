"""Where updates come from: a running node, or a recorded run."""
