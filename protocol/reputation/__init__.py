"""Reputation: partners' measurements of a peer, and the estimates derived from them."""
