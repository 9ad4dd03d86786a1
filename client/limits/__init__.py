"""The owner's limits: how much a volunteer lends and when, the facts needed, and the decision."""
