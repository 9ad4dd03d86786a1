"""The network: the only part of the client that imports libp2p."""
