"""Faults on real processes, and their costs. See ``command``."""
