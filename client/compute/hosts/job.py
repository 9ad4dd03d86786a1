"""Which host of a cluster job this is: from the owner's settings and the job's variables.

Settings come first. Otherwise it is what `torchrun` (GROUP_RANK, GROUP_WORLD_SIZE, MASTER_ADDR,
MASTER_PORT), an Indexed Job of Kubernetes (JOB_COMPLETION_INDEX), a launcher of one's own
(NODE_RANK, NNODES) or `srun` (SLURM_NODEID, SLURM_STEP_NODELIST ...) have set.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from client.config import Settings
from client.errors import ConfigError

KEY_BYTES = 32
MOST_HOSTS = 64
KEY_VARIABLE = "VOLUNTEER_HOSTS_KEY"
_COUNTS = ("NNODES", "GROUP_WORLD_SIZE", "SLURM_STEP_NUM_NODES", "SLURM_NNODES")
_INDICES = ("NODE_RANK", "GROUP_RANK", "JOB_COMPLETION_INDEX", "SLURM_NODEID")
_NODE_LISTS = ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST")
_AGENT = "TORCHELASTIC_USE_AGENT_STORE"
_FIRST_PORT, _PORTS = 20_000, 10_000
"""Below those from which systems take ports of connections."""
_OTHERS_READ = 0o007
_HOST = r"(?P<host>[\w-]{1,63}(\.[\w-]{1,63})*\.?)"
_ADDRESS = re.compile(
    rf"(\[(?P<six>[0-9A-Fa-f:.]+(%\w+)?)\]|{_HOST}):(?P<port>\d{{1,5}})", re.ASCII
)
_NODE = re.compile(r"(?P<name>[^,\[]+)(\[(?P<number>\d+)[^\]]*\](?P<rest>[^,\[]*))?")


@dataclass(frozen=True, slots=True)
class Job:
    """The hosts that are one volunteer.

    Fields:
        hosts: their number, two at least. index: of this one; the first one, 0, is the volunteer.
        address, port: where the first one awaits the others.
        key: 32 bytes that all of them hold.
    """

    hosts: int
    index: int
    address: str
    port: int
    key: bytes = field(repr=False)


def job_of(settings: Settings, environ: Mapping[str, str]) -> Job | None:
    """Return the job whose hosts are one volunteer; None: this host is one by itself.

    Args:
        settings: the owner's.
        environ: the variables of this process.

    Raises:
        ConfigError: a variable is missing or has a value that cannot be used; so has the key.
    """
    if settings.hosts == 1:
        return None
    hosts = settings.hosts or _number(environ, _COUNTS, "number of hosts", "name it: --hosts 2")
    if hosts == 1:
        return None
    if not 2 <= hosts <= MOST_HOSTS:
        raise ConfigError(f"{hosts} hosts are no group", f"2 to {MOST_HOSTS} hosts may be one")
    index = settings.host_index
    if index < 0:
        index = _number(environ, _INDICES, "index of this host", "name it: --host-index 0, 1, …")
    if index >= hosts:
        raise ConfigError(f"there is no host {index} of {hosts}", "indices begin with 0")
    address, port = _place(settings, environ)
    return Job(hosts, index, address, port, _key(settings, environ))


def _number(environ: Mapping[str, str], names: tuple[str, ...], what: str, hint: str) -> int:
    for name in names:
        if (text := environ.get(name)) is not None:
            if not re.fullmatch(r"\d{1,10}", text):
                raise ConfigError(f"{name} is {text!r}, which is no number", hint)
            return int(text)
    raise ConfigError(f"the {what} is unknown: no variable of a cluster job gives it", hint)


def _place(settings: Settings, environ: Mapping[str, str]) -> tuple[str, int]:
    if settings.hosts_address:
        return parse_place(settings.hosts_address)
    if environ.get("MASTER_ADDR") and environ.get("MASTER_PORT"):
        hint = "MASTER_PORT is a free port of the first host"
        port = _number(environ, ("MASTER_PORT",), "port", hint)
        if environ.get(_AGENT) == "True":  # torchrun has a store of its own on that port
            port += 1
        return parse_place(f"{environ['MASTER_ADDR']}:{port}")
    for name in _NODE_LISTS:
        if environ.get(name):
            of_job = _number(environ, ("SLURM_JOB_ID",), "job", "set SLURM_JOB_ID")
            return first_node(environ[name]), _FIRST_PORT + of_job % _PORTS
    words = "the first host is unknown: no variable of a cluster job gives its address"
    raise ConfigError(words, "name a free port of it: --hosts-address node1:29400")


def parse_place(text: str) -> tuple[str, int]:
    """Return the host and the port of `host:port`.

    Raises:
        ConfigError: it is none.
    """
    found = _ADDRESS.fullmatch(text)
    if found is None or not 0 < int(found["port"]) <= 65535:
        raise ConfigError(f"{text!r} is no host and port", "write it like node1:29400")
    return found["six"] or found["host"], int(found["port"])


def first_node(nodes: str) -> str:
    """Return the first name of Slurm's list of hosts, such as `node[01-04,7],other`.

    Raises:
        ConfigError: it is no such list.
    """
    found = _NODE.match(nodes)
    if found is None:
        raise ConfigError(f"{nodes!r} is no list of hosts", "use --hosts-address")
    return found["name"] + (found["number"] or "") + (found["rest"] or "")


def _key(settings: Settings, environ: Mapping[str, str]) -> bytes:
    hint = f"make it once for a job: (umask 077; openssl rand -hex {KEY_BYTES} > FILE)"
    if settings.hosts_key_file:
        path = Path(settings.hosts_key_file)
        try:
            if path.stat().st_mode & _OTHERS_READ:
                words = f"{path} is open to every user"
                raise ConfigError(words, f"chmod 600 {path}, and make a fresh key")
            with path.open("rb") as file:
                data = file.read(4 * KEY_BYTES)
        except OSError as error:
            raise ConfigError(f"cannot read the job's key: {error}", hint) from error
        return parse_key(data, str(path))
    if KEY_VARIABLE in environ:
        return parse_key(environ[KEY_VARIABLE].encode(), KEY_VARIABLE)
    words = "the hosts of a job need a key that they share"
    raise ConfigError(words, f"{hint}; then --hosts-key-file FILE")


def parse_key(data: bytes, origin: str) -> bytes:
    """Return a key from its bytes, or from hexadecimal digits.

    Raises:
        ConfigError: it has another length.
    """
    text = data.strip()
    if re.fullmatch(rb"[0-9A-Fa-f]{%d}" % (2 * KEY_BYTES), text):
        return bytes.fromhex(text.decode())
    if len(data) == KEY_BYTES:
        return data
    words = f"{origin} has no key of {KEY_BYTES} bytes"
    raise ConfigError(words, f"make one: openssl rand -hex {KEY_BYTES}")
