"""News for peers that have done no work: the newest of each author, along with a heartbeat."""

from __future__ import annotations

from client.train.messaging.slow_news import SlowNews
from protocol.ids import PeerId
from protocol.limits import MAX_RECORDS_PER_MESSAGE
from protocol.membership.advert import ADVERT
from protocol.membership.losses import PROGRESS
from protocol.wire.fields import Envelope
from protocol.wire.messages import Heartbeat, Records

NEW, PROVEN = PeerId("new"), PeerId("proven")
BEAT = Heartbeat(seq=1, seats=[])


def said(author: str, number: int, kind: str = PROGRESS) -> Envelope:
    return Envelope(author, kind, bytes([number]), bytes(64))


def some() -> SlowNews:
    return SlowNews(lambda peer: peer != PROVEN)


def test_only_the_newest_of_each_author_is_sent_and_once() -> None:
    news = some()
    for number in range(10):
        assert news.keeps(NEW, Records([said("a", number)]))
    assert news.keeps(NEW, Records([said("b", 1)]))
    assert news.along(NEW, Records([])) is None
    assert news.along(NEW, BEAT) == Records([said("a", 9), said("b", 1)])
    assert news.along(NEW, BEAT) is None


def test_who_has_worked_hears_at_once_and_so_does_everybody_of_everything_else() -> None:
    news = some()
    assert not news.keeps(PROVEN, Records([said("a", 1)]))
    assert not news.keeps(NEW, Records([said("a", 1), said("a", 1, ADVERT)]))
    assert news.along(NEW, BEAT) is news.along(PROVEN, BEAT) is None


def test_what_waits_is_one_message_at_most_and_goes_with_the_link() -> None:
    news = some()
    for number in range(MAX_RECORDS_PER_MESSAGE):
        assert news.keeps(NEW, Records([said(f"a{number}", 1)]))
    assert not news.keeps(NEW, Records([said("one more", 1)]))
    assert news.keeps(NEW, Records([said("a0", 2)]))
    waiting = news.along(NEW, BEAT)
    assert len(waiting.records) == MAX_RECORDS_PER_MESSAGE
    news.keeps(NEW, Records([said("a", 1)]))
    news.gone(NEW)
    assert news.along(NEW, BEAT) is None
