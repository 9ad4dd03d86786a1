"""The efficiency model: predicts the throughput of a swarm of given machines, and its bottleneck.

Pure: no torch, clock, network or disk. ``model`` predicts; ``cuts`` deals machines out to stages
and compares several cuts of a model; ``rounds`` says how long local rounds are. The costs of stages
are arguments.
"""
