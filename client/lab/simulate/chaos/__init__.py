"""A seeded world with every permitted fault, in which the invariants have to hold.

``python -m client.lab.simulate.chaos --seed N`` replays a run; ``tests/sim/test_chaos_*.py`` run
thousands of seeds, let Hypothesis choose faults, and check that broken machines are detected.
"""
