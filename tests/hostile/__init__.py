"""Attackers as code, and what they do to a real swarm: ``python -m tests.hostile list``."""
