"""One file an attack; see ``tests/hostile/attack.py``."""
