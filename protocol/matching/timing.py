"""Every wait of the matching that is its own, in seconds, with its reason. Constants only."""

from protocol import pace
from protocol.pace import ANSWER_S, ASIDE_S, FETCH_S, HEARD_S, SETTLED_S

LEASE_S = ASIDE_S
"""A place, a posting or a letter that is not said anew for so long counts no more: who said it is
gone or cut off."""

HASTE_S = HEARD_S / 2
"""What is urgent is done within this time: before the gang start holds are renewed, for a lost HOLD
or REJECT surfaces here; a second seat looks for a stage when one next to its home has no replica.
Each next candidate for a vacant stage waits this much longer, so that differing views still end in
one steward."""

PASSED_OVER_S = 5 * HASTE_S
"""A tentative place lapses without one of five fast renewals. Whoever is called sets out within
this time, or another one is called; a steward that does not answer is left alone for it."""

MUTE_AFTER_TRIES = 15
"""A steward that leaves this many proposals unanswered is passed over."""

SETTLE_S = 0.4
"""Quiet after the last arrival: more than a round trip, so that rejected peers have come back. A
stage posts twice in this time at most: arrivals come in bursts."""

HANDOVER_S = HASTE_S + pace.LOOK_S
"""A successor waits this long for the holders of its predecessor before it places newcomers."""

PATIENCE_S = ANSWER_S + 2 * HASTE_S
"""The turn of a stage's third candidate. A volunteer waits this long for a stage's (next) steward
before it proposes to other stages, and a stage for the others to fall quiet."""

LOOK_S = ASIDE_S
"""A needy stage looks this often whether somebody would be more useful there, and a second seat for
a stage, or whether its own is still worth it. Who waits for this long for the gang start takes an
empty stage beside its own as well, and a covered pipeline starts then even if volunteers keep
arriving."""

NEXT_CALL_S = HASTE_S + ANSWER_S
"""It looks again after this time when somebody has come, or when it is empty."""

BEACON_S = FETCH_S
"""For so long whom the hash favours keeps a stage's stewardship."""

MEASURED_S = SETTLED_S
"""Partners know a peer's speed once they have measured it for this long: until then its claims are
capped, and a seat does not change its stage again."""
