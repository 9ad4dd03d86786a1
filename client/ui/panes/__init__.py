"""One file per tab, with its panels and their views."""
