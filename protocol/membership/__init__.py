"""Membership: the members of the swarm, their records, and which of them are live."""
