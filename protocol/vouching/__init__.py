"""Swarms that are entered by invitation: members vouch for those they invite, by signature.

From what knows least: ``chain.py`` (the signatures from the founder to a member), ``ticket.py``
(what an invite carries until its bearer is vouched for), ``register.py`` (who belongs to the swarm,
and who was expelled).
"""
