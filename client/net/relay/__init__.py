"""Relayed connections: passing circuits on for others, and being reached through relays."""
