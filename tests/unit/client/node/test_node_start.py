"""What a node looks at before it opens anything."""

import tempfile
from pathlib import Path

import pytest
import trio

from client.config import Settings
from client.errors import ExitCode, UserError
from client.node.node import NodeOptions, run_node
from protocol.address import Address


async def test_sockets_are_not_put_where_others_may_come(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(prefix="vol") as home:  # a socket's path must be short
        monkeypatch.setenv("VOLUNTEER_HOME", home)
        folder = Path(home) / "run"
        folder.mkdir()
        folder.chmod(0o755)
        options = NodeOptions(Settings(), Address("ip4", "127.0.0.1", 1))
        with pytest.raises(UserError, match="other users can enter") as caught:
            await run_node(options, on_event=lambda _: None, stop=trio.Event())
        assert caught.value.exit_code == ExitCode.REFUSED, "a service does not try again"
        assert [path.name for path in Path(home).iterdir()] == ["run"]
