"""Every wait of a full epoch, in seconds, with its reason. Constants only."""

from __future__ import annotations

EPOCH_GAP_S = 60.0
"""Between two epochs, so that the moves of the last one begin to show in the postings."""

EMERGENCY_GAP_S = 5.0
"""The same while a stage lacks replicas: newcomers get this long to fill it."""

NEWCOMERS_S = 15.0
"""Newcomers without a place get this long, because they may make an epoch needless."""

AFTER_ABORT_S = 300.0
"""Wait after an epoch without a plan that pays, if little has changed since."""

ASK_S = 0.5
"""An unanswered vote or intent is sent again soon, because an attempt is short."""

CALL_S = 1.0
"""An elector that has not answered is called again; it may be waiting for the last box to open."""

OPENING_S = 20.0
"""All boxes open within this time, even if a dead steward must be detected and replaced."""

COLLECT_S = 10.0
"""From then on a vote may take this long; electors that have not voted by then stay at home."""

LATE_S = 3.0
"""After that, the vote must come to rest within this time."""

FREEZE_S = 5.0
"""Every box freezes, and every plan that pays is attested, within this time."""

DECIDED_S = 20.0
"""A chair gives up a decision that is not attested within this time."""

ATTEST_S = 10.0
"""A decision older than this is not attested any more, because the chair may have given it up."""

RECORD_S = 60.0
"""Records of full epochs count for this long after their arrival."""

BALLOT_GAP_S = 0.2
"""Shortest time between two ballots of a box: votes come in bursts."""
