"""Facts about a run: model, optimizer, data, tokens, stages, and the layout of a state.

Pure: no torch, no numpy, no IO. This is the only home of these facts; the manifest, the worker's
requests, checkpoints, memory planning, matching and export read them here.
"""
