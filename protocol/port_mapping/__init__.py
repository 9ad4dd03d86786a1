"""A port of the router that leads to ours: the messages of PCP, and when to ask for what."""
