"""Who contributed how much to committed steps: what members say of each other, and what of it is
vouched for. Nobody is matched, trusted or paid by it; it is a board for people."""
