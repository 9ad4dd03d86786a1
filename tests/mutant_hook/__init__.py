"""What a process needs to run one mutant: a folder for PYTHONPATH with a ``sitecustomize``."""
