"""A worker's ranks on the hosts of one cluster job. No torch, no libp2p.

The first host is the volunteer. Every other one runs a process that starts ranks for it
(`following`), and whose connections it accepts (`leading`).
"""
