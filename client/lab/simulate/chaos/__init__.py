"""A seeded world in which everything goes wrong that may, and the invariants have to hold.

``python -m client.lab.simulate.chaos --seed N`` replays a run; ``tests/sim/test_chaos_*.py`` make
thousands of them, let Hypothesis choose the faults, and hold that broken machines are noticed.
"""
