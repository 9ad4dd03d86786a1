"""The laboratory of homes: every router maps and filters TCP as its kind says."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from tests.netlab.inside import inside
from tests.netlab.internet import Internet, Place, why_not
from tests.netlab.routers import Router

reason = why_not()
pytestmark = pytest.mark.skipif(reason is not None, reason=f"no laboratory here: {reason}")

PORT = 4001
PATIENCE_S = 20.0
SILENCE_S = 1.5
"""How long nobody answers before we say that packets are dropped: an answer takes no time here."""
LETS_IN = {
    Router.FULL_CONE: ("in", "in", "in"),
    Router.ADDRESS_RESTRICTED: ("in", "silence", "in"),
    Router.PORT_RESTRICTED: ("silence", "silence", "silence"),
    Router.ANSWERING: ("refused", "refused", "refused"),
    Router.SYMMETRIC: ("silence", "silence", "silence"),
}
"""What a fresh port of host one, of host three and of two meet at the port that one saw."""


def _socket() -> socket.socket:
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    made.settimeout(PATIENCE_S)
    return made


def _bound(host: str, port: int) -> socket.socket:
    made = _socket()
    made.bind((host, port))
    return made


def _listening(host: str, port: int) -> socket.socket:
    made = _bound(host, port)
    made.listen()
    return made


@contextmanager
def _left(net: Internet, host: str, to: dict[str, str]) -> Iterator[dict[str, tuple[str, int]]]:
    """Connect from a host's ``PORT`` to public hosts; what each of these sees, by name."""
    own = net.address(host)
    with ExitStack() as stack:
        seen = {}
        stack.enter_context(inside(net, host, lambda: _listening(own, PORT)))
        for name, address in to.items():
            server = stack.enter_context(inside(net, name, lambda a=address: _listening(a, PORT)))
            dialler = stack.enter_context(inside(net, host, lambda: _bound(own, PORT)))
            dialler.connect((address, PORT))
            accepted, where = server.accept()
            stack.enter_context(accepted)
            seen[name] = (where[0], where[1])
        yield seen


def _meets(net: Internet, host: str, target: tuple[str, int]) -> str:
    """What a fresh port of a host meets: ``in``, ``refused`` or ``silence``."""
    with inside(net, host, _socket) as dialler:
        dialler.settimeout(SILENCE_S)
        try:
            dialler.connect(target)
        except ConnectionRefusedError:
            return "refused"
        except TimeoutError:
            return "silence"
        return "in"


@pytest.mark.parametrize("kind", Router)
def test_a_router_maps_and_filters_as_its_kind_says(kind: Router) -> None:
    places = {"home": Place(kind), "one": Place(), "two": Place(), "three": Place()}
    with Internet(places) as net:
        to = {name: net.public(name) for name in ("one", "two")}
        with _left(net, "home", to) as seen:
            assert {address for address, _ in seen.values()} == {net.public("home")}
            same_port = seen["one"][1] == seen["two"][1]
            assert same_port == (kind is not Router.SYMMETRIC)
            met = tuple(_meets(net, name, seen["one"]) for name in ("one", "three", "two"))
            assert met == LETS_IN[kind]
