"""The terminal interface: shows what a node says over its control socket; never touches the node.

``source`` brings updates (live or recorded), ``model`` turns them into lines of words, ``widgets``,
``panes`` and ``dialogs`` show those, ``app`` puts them together. Only the last four know Textual.
"""
