"""The compute side of a client: the torch worker process, its wire codecs and its supervisor.

Which files may import torch matters here, because the node process never does:

* torch-free, for node and worker alike: `errors`, `payload`, `requests`, `ring`, `frames`,
  `memory`, `checkpoint` and, for the node alone, `process`;
* torch, for the worker alone: everything else, entered through `worker`.

This package imports no torch by itself; import the file you need.
"""
