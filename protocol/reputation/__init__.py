"""Reputation: what partners measured of a peer, and what follows for what is believed of it."""
