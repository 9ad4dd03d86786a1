"""What a run trains, as facts: model, optimizer, data, tokens, stages, and the layout of a state.

Pure: no torch, no numpy, no IO. Everything that has to know such a fact asks here: the manifest,
the worker's requests, checkpoints, memory planning, matching and export.
"""
