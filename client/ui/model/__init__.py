"""What the terminal interface says, as plain data: no Textual, no sockets, no clock."""
