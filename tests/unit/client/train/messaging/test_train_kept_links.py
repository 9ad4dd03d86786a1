"""The peers that a volunteer dials: its neighbours, recently lost ones, and those it met before."""

from client.train.messaging.kept_links import MAX_MET, KeptLinks
from protocol.address import Address
from protocol.membership.roster import Roster
from tests.support.protocol_examples import advert, peer


def at(number: int, host: str = "192.0.2.1") -> Address:
    return Address("ip4", host, 1000 + number, peer(number))


def test_who_was_met_before_is_called_until_it_is_heard_of() -> None:
    roster = Roster(peer(0))
    known = KeptLinks([at(1), at(2), Address("ip4", "192.0.2.9", 9)])
    assert known.wanted(roster) == {peer(n): (str(at(n)),) for n in (1, 2)}
    roster.advertise(peer(1), advert(), 1)
    assert known.wanted(roster) == {
        peer(1): advert().addresses,
        peer(2): (str(at(2)),),
    }


def test_who_died_is_called_and_who_left_is_not_until_its_goodbye_is_old() -> None:
    roster, known = Roster(peer(0)), KeptLinks([at(1), at(2)])
    for number in (1, 2):
        roster.advertise(peer(number), advert(leaving=number == 2), 1)
        roster.link_up(peer(number))
        roster.link_down(peer(number), "reset")
    assert list(known.wanted(roster)) == [peer(1)]
    for number in (1, 2):
        roster.withdraw(peer(number), "its advert expired")
    assert known.wanted(roster) == {peer(n): (str(at(n)),) for n in (1, 2)}


def test_of_those_met_since_the_start_whom_it_met_long_ago_is_forgotten_first() -> None:
    known = KeptLinks()
    known.meet(at(number) for number in range(1, MAX_MET + 1))
    known.meet([at(1), at(MAX_MET + 1)])
    wanted = known.wanted(Roster(peer(0)))
    assert len(wanted) == MAX_MET
    assert peer(1) in wanted
    assert peer(MAX_MET) not in wanted
    known.meet(at(number) for number in range(100, 100 + 2 * MAX_MET))
    assert [*known.wanted(Roster(peer(0)))] == [peer(100 + n) for n in range(MAX_MET)]


def test_an_address_of_the_invite_is_never_forgotten() -> None:
    known = KeptLinks([at(1)])
    known.meet([at(1, "192.0.2.2")])
    known.meet(at(number) for number in range(2, MAX_MET + 2))
    assert known.wanted(Roster(peer(0)))[peer(1)] == (str(at(1)),)
    known.meet([at(1, "192.0.2.2")])
    both = (str(at(1, "192.0.2.2")), str(at(1)))
    assert known.wanted(Roster(peer(0)))[peer(1)] == both
