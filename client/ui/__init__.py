"""The terminal interface: shows a node's state from its control socket; it runs apart from the
node.

``source`` brings updates, ``client.views`` turns them into words, ``widgets``, ``panes`` and
``dialogs`` show those, ``app`` puts them together. Only the last four know Textual.
"""
