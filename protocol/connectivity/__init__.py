"""Whether our way to the others still works, and what is to be done when it has changed."""
