"""Amendments: how long a run is and what its learning rate is, changed by its founder.

From what knows least: ``amendment.py`` (the signed statement), ``book.py`` (those that a volunteer
knows, and which of them holds at a step).
"""
