"""Every wait of the matching, in seconds, with its reason. Constants only."""

from __future__ import annotations

LEASE_S = 60.0
"""A hold that is not renewed for this long lapses: the holder is gone or cut off."""

TENTATIVE_LEASE_S = 10.0
"""Lease before the holder has confirmed that it fetches: five fast renewals."""

RENEW_S = 15.0
"""A replica renews this often; four renewals must be lost before its lease lapses."""

TENTATIVE_RENEW_S = 2.0
"""Before the gang start holds are renewed faster: a lost HOLD or REJECT surfaces here."""

RETRY_S = 1.0
"""An unanswered letter is sent again."""

MUTE_AFTER_TRIES = 15
"""A steward that leaves this many proposals unanswered is passed over for ``MUTE_S``."""

MUTE_S = 10.0

SETTLE_S = 0.4
"""Quiet after the last arrival: more than a round trip, so that rejected peers have come back."""

OPENING_S = 1.0
"""Quiet after a stage opens: its posting must reach the volunteers, and they must answer."""

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
"""A posting is repeated this often at rest; it is not believed for longer than its TTL."""

POSTING_TTL_S = 60.0
BODY_TTL_S = 60.0

LISTEN_S = 1.0
"""A stage without a steward for this long is taken over by the first candidate."""

SUCCESSION_STEP_S = 2.0
"""Each next candidate waits this much longer, so that differing views still end in one steward."""

ABSENCE_S = LISTEN_S + 2 * SUCCESSION_STEP_S
"""A volunteer waits this long for a stage's (next) steward before it proposes to other stages."""

SECOND_LOOK_S = 60.0
"""A second seat looks for a stage, or whether it is still worth it, this often."""

SECOND_HASTE_S = 2.0
"""It looks within this time when a stage next to its home has no replica."""

LOOK_S = 60.0
"""A needy stage looks this often whether somebody would be more useful there."""

NEXT_CALL_S = 3.0
"""It looks again after this time when somebody has come, or when it is empty."""

CALL_S = 10.0
"""Whoever is wanted sets out within this time, or another one is called."""

MOVE_REST_S = 300.0
"""A seat does not change its stage twice within this time."""

ALONE_S = 60.0
"""Who waits for this long for the gang start takes an empty stage beside its own as well."""

SECOND_FETCH_S = 600.0
"""A volunteer that needs longer to fetch a second stage does not take one. A second stage is also
averaged: at a step of ten minutes that takes a sixth of the link of a volunteer that fetches its
state in ten minutes."""

BEACON_S = 600
MEASURED_S = 300.0
"""Claims are capped until partners have measured a peer for this long."""
