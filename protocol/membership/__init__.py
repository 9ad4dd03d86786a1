"""Membership: who is in the swarm, what they say of themselves, and who is still there."""
