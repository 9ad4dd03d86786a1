"""Hole punching: two peers behind routers make a direct connection by dialling each other at once."""
