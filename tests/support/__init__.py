"""What test modules share: examples, worlds and stand-ins that they build on.

A test module imports from here and never from another test module. What only fixtures need is in
the ``conftest.py`` of their folder.
"""
