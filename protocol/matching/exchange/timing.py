"""Every wait of a full epoch, in seconds, with its reason. Constants only."""

from __future__ import annotations

EPOCH_GAP_S = 60.0
"""Between two epochs: what the last one moved has begun to show in the postings."""

EMERGENCY_GAP_S = 5.0
"""The same while a stage lacks replicas: newcomers get this long to fill it."""

NEWCOMERS_S = 15.0
"""Newcomers without a place get this long: they may mend what an epoch would be called for."""

AFTER_ABORT_S = 300.0
"""Nothing was worth it and little has changed since: ask again after this long."""

ASK_S = 0.5
"""An unanswered vote or intent is sent again: an attempt has no time for long waits."""

CALL_S = 1.0
"""An elector that has not spoken is called again; it may still wait for the last box to open."""

OPENING_S = 20.0
"""All boxes are open within this: a dead steward is found, replaced and knows its holders."""

COLLECT_S = 10.0
"""From then on a vote may take this long; who has not spoken by then stays at home."""

LATE_S = 3.0
"""After that, the others have this long to come to rest."""

FREEZE_S = 5.0
"""Every box has frozen, and every plan that is worth it is attested, within this."""

DECIDED_S = 20.0
"""A chair whose decision is not attested gives it up after this long."""

ATTEST_S = 10.0
"""A decision older than this is not attested any more: the chair may have given it up."""

RECORD_S = 60.0
"""Records of full epochs count for this long after they came."""

BALLOT_GAP_S = 0.2
"""Shortest time between two ballots of a box: votes come in bursts."""
