"""The efficiency model: predicts the throughput of a swarm of given machines, and its bottleneck.

Pure: no torch, clock, network or disk. ``model`` predicts, ``placing`` assigns machines to stages,
``compare`` searches for the best plan. The costs of stages are arguments.
"""
