"""``volunteer matches``: the matching of stages to volunteers, with consents and reasons."""

from __future__ import annotations

import time
from functools import partial
from typing import Annotated

from cyclopts import Parameter

from client.cli.matching.matches_text import records_report, whole_report
from client.cli.matching.records import check_records
from client.cli.reach.home import Home, running_home
from client.cli.reach.running import connect, not_running
from client.cli.reach.target import find_swarm
from client.cli.terminal.output import print_moment
from client.control.client import NotRunning
from client.errors import ExitCode, UserError
from protocol.invite import SwarmFile

WATCH_S = 1.0


def matches(
    *,
    swarm: str | None = None,
    json: bool = False,
    watch: bool = False,
    records: bool = False,
    everything: Annotated[bool, Parameter(name="--all")] = False,
) -> int:
    """Show who does which part of the model and why, then the numbers behind it.

    With ``records`` the stored match records, each checked; returns 1 if one is not genuine.

    Parameters
    ----------
    swarm
        Name or beginning of the id of the swarm, where there are several.
    json
        Print JSON; with --watch one document per line.
    watch
        Go on until it ends or you interrupt.
    records
        List and check the stored match records instead.
    everything
        Show explanations for developers, too.
    """
    if records and watch:
        raise UserError("--records and --watch do not go together", exit_code=ExitCode.USAGE)
    home = running_home()
    if records:
        return _records(home, swarm, json)
    with connect(home.folders, swarm) as node:
        try:
            while True:
                now = node.matches(everything)
                report = partial(whole_report, node.status())
                print_moment(now, report, as_json=json, watch=watch)
                if not watch:
                    break
                time.sleep(WATCH_S)
        except NotRunning as error:
            if not watch:
                raise not_running(home.folders, swarm) from error
    return ExitCode.OK


def _records(home: Home, text: str | None, as_json: bool) -> int:
    swarm = find_swarm(home, text)
    if not isinstance(swarm, SwarmFile):
        raise UserError("this swarm is not known on this machine", "join it first", ExitCode.USAGE)
    found = check_records(home.folders.agreements(swarm.swarm), swarm)
    print_moment(found, records_report, as_json=as_json, watch=False)
    genuine = all(record.valid for record in found.records)
    return ExitCode.OK if genuine else ExitCode.RUNTIME
