"""What members say of newer programs is told, and nothing follows from it."""

import pytest

from client.train.messaging.newer import MAX_MEMBERS, NewerPrograms
from protocol.wire.messages import Hello
from tests.support.protocol_examples import SWARM, peer


def hello(client: str, protocol: int = 3) -> Hello:
    return Hello(protocol, SWARM, client)


def test_it_is_said_once_and_counted_after_that() -> None:
    newer = NewerPrograms("volunteer/0.9.0", 3)
    heard = [newer.heard(peer(n), hello("volunteer/0.10.2")) for n in range(3)]
    assert heard == [True, False, False]
    assert not newer.heard(peer(0), hello("volunteer/0.10.2")), "it has come back"
    assert newer.words == "3 members report a newer program than this one, such as version 0.10.2"


def test_a_newer_protocol_counts_whatever_the_version_is() -> None:
    newer = NewerPrograms("volunteer/0.9.0", 3)
    assert newer.heard(peer(1), hello("something else", 4))
    assert newer.words == "1 member reports a newer program than this one, such as protocol 4"


@pytest.mark.parametrize(
    "client",
    ["volunteer/0.9.0", "volunteer/0.8.9", "other/1.0.0", "volunteer/1.0.0\x1b[2J", "volunteer/1"],
)
def test_older_ones_and_words_of_another_form_are_no_news(client: str) -> None:
    newer = NewerPrograms("volunteer/0.9.0", 3)
    assert not newer.heard(peer(1), hello(client, 2))
    assert newer.words == ""


def test_many_identities_take_a_bounded_room() -> None:
    newer = NewerPrograms("volunteer/0.9.0", 3)
    for number in range(2 * MAX_MEMBERS):
        newer.heard(peer(number), hello("volunteer/1.0.0"))
    assert newer.words.startswith(f"{MAX_MEMBERS} members report")
