"""A port of the router that leads to ours: what a router answers, and the messages of PCP."""
