"""A seeded world in which everything goes wrong that may, and the invariants have to hold."""
