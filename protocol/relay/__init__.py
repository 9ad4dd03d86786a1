"""Relayed circuits: the messages about them, and the machine of members that relay."""
