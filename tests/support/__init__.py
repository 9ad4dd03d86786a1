"""Examples, worlds and stand-ins that test modules share.

A test module imports from here and never from another test module. Code for fixtures only is in the
``conftest.py`` of their folder.
"""
