"""The efficiency model: what a swarm of given machines would reach, and what would limit it.

Pure: no torch, clock, network or disk. ``model`` predicts, ``placing`` puts machines on stages,
``compare`` looks for the best; what stages cost comes from outside.
"""
