"""What a node says, in words: each fact is made here once, for the commands and the screen.

Plain data: no Textual, no sockets, no clock.
"""
