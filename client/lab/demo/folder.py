"""The folder of a demo's results."""

from pathlib import Path
from typing import Final

from client.errors import UserError
from client.lab.chaos.command import prepare

SWARM_FILE: Final = "demo.swarm"
REPORT_FILE: Final = "report.json"


def prepare_folder(out: Path) -> None:
    """Make the folder; raises ``UserError`` if it cannot be written, or has what no demo wrote."""
    prepare(out)
    if {path.name for path in out.iterdir()} - {"logs"} and not (out / SWARM_FILE).exists():
        raise UserError(f"{out} has files that no demo wrote", "choose another --out")
    (out / REPORT_FILE).unlink(missing_ok=True)
