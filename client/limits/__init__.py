"""The owner's limits: resources and times of a volunteer, the facts needed, and the decision."""
