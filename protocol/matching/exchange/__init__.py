"""Full epochs: serving volunteers are matched anew, all or nothing, if a plan is worth it."""
