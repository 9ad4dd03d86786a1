"""Show what is kept on disk, and free space.

Group: this machine

$ volunteer cache ls  # by kind
$ volunteer cache prune --dry-run  # what would be removed
"""

from __future__ import annotations

from client.cli.cached import CHECKPOINTS, Kept, kept, remove
from client.cli.command_table import nested_app
from client.cli.reach.home import Home, find_home
from client.cli.terminal.ask import confirmed
from client.cli.terminal.output import print_json, say
from client.cli.terminal.parameters import AsJson
from client.cli.terminal.table import aligned
from client.errors import ExitCode, UserError
from client.quantities import plural
from client.store.identity import IdentityLock
from client.store.paths import make_private
from client.views.words import size as human_bytes

app = nested_app("cache")


@app.command
def ls(*, json: AsJson = False) -> None:
    """List what the volunteer keeps on disk: training texts, checkpoints, leftovers, logs."""
    folder = find_home().folders.data
    kinds = kept(folder)
    if json:
        print_json({"folder": str(folder), "kinds": list(map(_view, kinds))})
        return
    rows = [
        [
            k.kind,
            str(len(k.files)),
            human_bytes(k.size_bytes),
            "yes" if k.prunable else "no",
            k.words,
        ]
        for k in kinds
    ]
    for line in aligned(["kind", "files", "size", "pruned", "what it is"], rows):
        print(line)


@app.command
def prune(
    *, checkpoints: bool = False, dry_run: bool = False, yes: bool = False, json: AsJson = False
) -> int:
    """Remove what can be had again; the volunteer must not be running.

    Parameters
    ----------
    checkpoints
        Also remove the checkpoints. If nobody else has them, what they hold of the run is lost.
    dry_run
        Only say what would be removed.
    yes
        Do not ask.
    """
    home = find_home()
    folder = home.folders.data
    chosen = [k for k in kept(folder) if k.prunable or (checkpoints and k.kind == CHECKPOINTS)]
    size = sum(kind.size_bytes for kind in chosen)
    if not dry_run and chosen:
        words = ", ".join(f"{kind.kind} ({human_bytes(kind.size_bytes)})" for kind in chosen)
        if not confirmed(f"Remove {words}?", yes=yes):
            say("nothing was removed")
            return ExitCode.INTERRUPTED
        size = _remove(home, chosen)
    if json:
        removed = list(map(_view, chosen))
        answer = {"folder": str(folder), "removed": removed, "freed_bytes": size}
        print_json({**answer, "dry_run": dry_run})
    else:
        verb = "would be removed" if dry_run else "removed"
        for kind in chosen:
            print(f"{kind.kind}: {plural(len(kind.files), 'file')} {verb}")
        say(f"{human_bytes(size)} {'would be' if dry_run else 'are'} free")
    return ExitCode.OK


def _remove(home: Home, chosen: list[Kept]) -> int:
    try:
        with IdentityLock(make_private(home.folders.data)):
            return remove(chosen)
    except OSError as error:
        problem = f"cannot remove {error.filename}: {error.strerror}"
        raise UserError(problem, "fix the permissions") from error


def _view(kind: Kept) -> dict[str, object]:
    return {
        "kind": kind.kind,
        "words": kind.words,
        "files": len(kind.files),
        "size_bytes": kind.size_bytes,
        "prunable": kind.prunable,
    }
