"""The whole membership machine against anything that parses: it survives and believes nothing."""

import math

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from protocol.effects import Explain, Publish
from protocol.matching.bodies import KIND as POSTING
from protocol.membership.measured import MEASURED, Measurements, Partner, StageRate
from protocol.membership.membership import Membership
from protocol.waypoints.part import WAYPOINT, SaidParts, SignedPart
from protocol.wire.messages import Heartbeat, RecordDigest, Records
from tests.support.protocol_examples import SWARM, WALL, advert, messages_of, peer, posting, signer

OWN = peer(0)
strangers = st.integers(1, 4).map(peer)
steps = st.one_of(
    st.tuples(
        st.just("receive"),
        strangers,
        st.one_of(messages_of(Records), messages_of(RecordDigest), messages_of(Heartbeat)),
    ),
    st.tuples(st.just("link_up"), strangers),
    st.tuples(st.just("link_down"), strangers),
    st.tuples(st.just("wait"), st.floats(0, 700)),
    st.tuples(st.just("wall jumps"), st.floats(-1e6, 1e6)),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(steps, max_size=25))
def test_no_sequence_of_messages_and_events_breaks_it(script: list[tuple[object, ...]]) -> None:
    machine, now, wall = Membership(OWN, SWARM, 4), 0.0, WALL
    for publish in machine.describe(advert(), now):
        assert isinstance(publish, Publish)
        machine.publish(publish, signer(0), now, wall)
    for action, *arguments in script:
        match action, arguments:
            case "receive", [str() as sender, message]:
                machine.receive(sender, message, now, wall)  # type: ignore[arg-type]
            case "link_up", [str() as other]:
                machine.link_up(other, now)  # type: ignore[arg-type]
            case "link_down", [str() as other]:
                machine.link_down(other, "closed", 0.0)  # type: ignore[arg-type]
            case "wait", [float() as seconds]:
                now, wall = now + seconds, wall + seconds
                for effect in machine.tick(now, wall):
                    if isinstance(effect, Publish):
                        machine.publish(effect, signer(0), now, wall)
            case "wall jumps", [float() as seconds]:
                wall += seconds
        assert set(machine.roster.live()) <= {OWN}
        deadline = machine.next_deadline()
        assert deadline is None or deadline == deadline


def test_our_own_record_that_breaks_the_rules_is_dropped_and_told() -> None:
    machine = Membership(OWN, SWARM, 4)
    endless = Measurements((Partner(peer(2), (StageRate(1, -1, 1),)),))
    told = [
        effect
        for publish in (
            *machine.describe(advert(flops=math.nan), 0.0),
            Publish(MEASURED, endless),
            Publish(POSTING, posting(4)),
            Publish(WAYPOINT, SaidParts((SignedPart(b"x", bytes(64)),))),
        )
        for effect in machine.publish(publish, signer(0), 0.0, WALL)  # type: ignore[arg-type]
    ]
    assert [isinstance(each, Explain) and each.level for each in told] == ["error"] * 4
    assert len(machine.records) == 0
    assert machine.next_deadline() is not None, "it goes on"
