"""A port of the router that leads to ours: the messages of NAT-PMP and PCP, and when to ask for
what."""
