"""Single-device language models for the swarm: specs, stages, optimizer, data, reference trainer.

Depends on torch, numpy and safetensors only; knows nothing of networks, peers or processes.
"""
