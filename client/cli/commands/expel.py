"""Expel a member that you, or somebody you invited, let into the swarm.

Group: the swarm

$ volunteer expel 3FkQ7x --reason "sends noise"  # and everybody whom it has invited

Only in swarms founded with --private: volunteer status members shows the tree.

Every member learns of it and cuts it off, with all whom it has invited, for the rest of the run.
The steps that it has worked for stay.
"""

from client.cli.reach.running import connect
from client.cli.terminal.answer import Answer, answered, of_node


@answered
def expel(member: str, *, reason: str = "") -> Answer:
    """Expel a member that you invited, or that came in through somebody you invited.

    Args:
        member: Its peer id, or the end of it, as volunteer status members shows it.
        reason: Why, for all members to read.
    """
    with connect() as node:
        gone, who = node.expel(member, reason), node.greeting
    words = f"expelled {gone.peer} from {who.swarm_name}; every member is told"
    return Answer(of_node(who, member=gone), words)
