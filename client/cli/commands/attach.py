"""Show the volunteer that runs here.

$ volunteer attach  # the screen; d closes it

Without a terminal, and with volunteer status --watch, it is a line a step.

One of another home: VOLUNTEER_HOME=HOME volunteer attach. On another machine: ssh -t me@lab
volunteer attach.
"""

from client.cli.reach.home import running_home
from client.cli.reach.running import find_socket


def attach() -> int:
    """Show a running volunteer; leaving the screen leaves it running."""
    from client.cli.screen import show

    folders = running_home().folders
    return show(find_socket(folders), folders)
