"""Resume after a pause.

$ volunteer resume  # now
"""

from client.cli.reach.running import connect
from client.cli.terminal.answer import Answer, answered, of_node


@answered
def resume() -> Answer:
    """Take part again: the matching finds a stage for this machine."""
    with connect() as node:
        resumed, who = node.resume(), node.greeting
        held = node.status().paused  # such as battery or schedule
    if held is not None:
        words = f"still paused: {held.reason}"
    else:
        words = "resumed" if resumed else "was not paused"
    return Answer(of_node(who, resumed=resumed, paused=held), f"{who.swarm_name}: {words}")
