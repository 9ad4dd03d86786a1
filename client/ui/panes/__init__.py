"""One file per tab: which panels it has and what fills them."""
