"""Full epochs: serving volunteers are matched again, all or nothing, if a plan pays."""
