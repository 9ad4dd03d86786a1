"""Hole punching: two peers behind routers dial each other at once, and so become direct."""
