"""Every wait of the matching that is its own, in seconds, with its reason. Constants only."""

from __future__ import annotations

from protocol.pace import ANSWER_S

LEASE_S = 60.0
"""A place, a posting or a letter that is not said anew for so long counts no more: who said it is
gone or cut off."""

PASSED_OVER_S = 10.0
"""Five fast renewals. A tentative place lapses without one for so long. Whoever is called sets out
within this time, or another one is called; a steward that does not answer is left alone for it."""

RENEW_S = 15.0
"""A replica renews this often; four renewals must be lost before its lease lapses."""

HASTE_S = 2.0
"""What is urgent is done within this time: before the gang start holds are renewed, for a lost HOLD
or REJECT surfaces here; a second seat looks for a stage when one next to its home has no replica.
Each next candidate for a vacant stage waits this much longer, so that differing views still end in
one steward."""

MUTE_AFTER_TRIES = 15
"""A steward that leaves this many proposals unanswered is passed over."""

SETTLE_S = 0.4
"""Quiet after the last arrival: more than a round trip, so that rejected peers have come back."""

HANDOVER_S = 2.5
"""A successor waits this long for the holders of its predecessor before it places newcomers."""

PATIENCE_S = 5.0
"""A stage waits this long for the others to fall quiet; then it decides without them."""

LONGEST_PATIENCE_S = 60.0
"""A covered pipeline starts after this time even if volunteers keep arriving. A short wait costs
quality: with 9 s, 500 volunteers that joined within a minute settled at .91 of the bound on 32
stages."""

PUBLISH_GAP_S = 0.2
"""Shortest time between two postings of a stage: arrivals come in bursts."""

REFRESH_S = 20.0
"""A posting is repeated this often at rest."""

ABSENCE_S = ANSWER_S + 2 * HASTE_S
"""A volunteer waits this long for a stage's (next) steward before it proposes to other stages."""

LOOK_S = 60.0
"""A needy stage looks this often whether somebody would be more useful there, and a second seat for
a stage, or whether its own is still worth it. Who waits for this long for the gang start takes an
empty stage beside its own as well."""

NEXT_CALL_S = 3.0
"""It looks again after this time when somebody has come, or when it is empty."""

MOVE_REST_S = 300.0
"""A seat does not change its stage twice within this time."""

SECOND_FETCH_S = 600.0
"""A volunteer that needs longer to fetch a second stage does not take one. A second stage is also
averaged: at a step of ten minutes that takes a sixth of the link of a volunteer that fetches its
state in ten minutes."""

BEACON_S = 600
MEASURED_S = 300.0
"""Claims are capped until partners have measured a peer for this long."""
