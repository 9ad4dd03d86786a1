"""A second start in a home is refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from subprocess import PIPE

import pytest

from client.store.last_run import RunRecord
from client.store.paths import home_folders, make_private
from tests.support.cli_process import Within

NODE = """
import sys
from client.store.last_run import RunRecord
from client.store.paths import find_folders, make_private
RunRecord(make_private(find_folders().data)).begin("ab" * 32, "my-swarm")
print("up", flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize("way", ["--headless", "--detach"])
def test_a_second_start_in_one_home_is_refused_before_anything_slow(
    within: Within, tmp_path: Path, way: str
) -> None:
    home = tmp_path / "home"
    invite = f"volunteer:{'ab' * 32}?peer=/ip4/127.0.0.1/tcp/1/p2p/" + (
        "12D3KooWQVJeEspFqUfxUYGgL7GTpevs1mT5aLgaFYv7TSjBuRer"
    )
    slow = {"trio", "libp2p", "torch"} - sys.modules.keys()
    home.mkdir(mode=0o700)
    command, pipes = [sys.executable, "-c", NODE], {"stdin": PIPE, "stdout": PIPE}
    with subprocess.Popen(command, text=True, **pipes) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        done = within.ends(75, "join", "--swarm", invite, way, "--yes")
        assert f"process {process.pid} already runs with this identity" in done.stderr
        assert "volunteer attach" in done.stderr
        assert not slow & sys.modules.keys()
        process.communicate("\n")
    assert not RunRecord(make_private(home_folders(home).data)).load().runs  # type: ignore[union-attr]
