"""The compute side of a client: the torch worker process, its wire codecs and its supervisor.

The node process never imports torch, so the files are of two kinds:

* torch-free, for node and worker alike: `errors`, `payload`, `requests`, `frames`,
  `memory`, `checkpoint` and, for the node alone, `process`;
* torch, for the worker alone: everything else, entered through `worker`.

This package imports no torch by itself; import the file you need.
"""
