"""The content of the terminal interface as plain data: no Textual, no sockets, no clock."""
