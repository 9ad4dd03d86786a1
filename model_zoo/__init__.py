"""Single-device language models for the swarm; README.md says where things go.

Depends on torch, numpy, safetensors and msgspec only; knows nothing of networks, peers, processes.
"""
