"""Faults on real processes, and what they cost. See ``command``."""
