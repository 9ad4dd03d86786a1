"""Relayed circuits: the machines of members that relay, and of members that are relayed."""
