"""Every bound on what a peer may send, with its reason. Nothing is allocated before these hold."""

from model_zoo.specs.state_hash import DIGEST_BYTES, LEAF_BYTES

MAX_HEADER_BYTES = 128 * 1024
"""A frame's header: the largest is a plan of 32 members with a bitmap of 16,384 ids each."""

MAX_PAYLOAD_BYTES = 3 * 2**30
"""A frame's payload: a boundary tensor of 131,072 tokens of width 4,096 in fp32, with its tokens.
A run takes none that is larger than its own."""
USUAL_PAYLOAD_BYTES = 64 * 2**20
"""The same before the run is known."""

CHUNK_BYTES = LEAF_BYTES
"""State transfer: one verified chunk, which is a leaf of the hash of what is fetched."""

MAX_CHUNKS = CHUNK_BYTES // DIGEST_BYTES
"""Of one blob: the list of their digests is itself one chunk."""
MAX_BLOB_BYTES = MAX_CHUNKS * CHUNK_BYTES
"""128 GiB."""

MAX_LEAVES = 2**26
"""Leaves of token data: 17.6 TB."""

MAX_STAGES = 256
MAX_MICROBATCHES_PER_STEP = 16_384
MAX_REPLICAS_IN_ROUND = 32
MAX_ELECTORS = 7
"""Of a step: a majority of them outlives three, and every replica can be linked with all."""
LEAST_TO_CONVICT = 3
"""Replicas of a stage: of fewer no majority can expel one."""
MAX_ATTEMPT = 2**31 - 1
"""Attempts to close one step, or to deliver one microbatch."""
MAX_ATTEMPTS_PER_S = 4096
"""The attempts of a step rise no faster, whatever a leader asks for or an elector refuses:
a lie neither exhausts the range nor takes them where others need long to follow."""
MAX_SEGMENTS = 512
"""Parts of a round's gradient. A plan has their offsets and a Ready 32 bytes of each."""
MAX_SEGMENT_ELEMENTS = 15 * 2**20
"""Fit a frame in any codec: 60 MiB in fp32."""
MAX_STAGE_PARAMETERS = 7_500_000_000
"""Fill so many segments, cut into equal shards of any number of replicas. 12 bytes each of state,
the most of all optimizers, fit a blob."""
MAX_MISSING = MAX_REPLICAS_IN_ROUND
"""Peers that a seat says its step cannot be closed without."""
MAX_ADDRESSES = 8
MAX_ADDRESS_CHARS = 256
MAX_NAME_CHARS = 64
MAX_REASON_CHARS = 256
MAX_SEATS = 4
MAX_RECORDS_PER_MESSAGE = 64
MAX_DIGEST_ENTRIES = 512
MAX_DIGEST_PARTS = 128
MAX_ENVELOPE_BODY_BYTES = 16 * 1024
"""The largest is a record."""
MAX_RECORD_BODY_BYTES = MAX_ENVELOPE_BODY_BYTES - 256
MAX_STEP = 2**40
MAX_HELD_OUT = 64
"""Held-out microbatches of an evaluation."""
MAX_PATHS = 3
"""Of an evaluation through the pipeline: the median of three numbers is no liar's."""
MAX_NUMBER = 1e30
"""Largest magnitude of a loss or a rate. Values computed from others' numbers must respect it too,
because a peer that sends more is penalised."""
MAX_SQUARED_NORM = 1e45
"""Of a sum: more than 2^40 numbers of 2^47, which is more than codecs let through. So whatever the
members contribute, its honest owner can say it."""
MAX_CLOCK_SKEW_S = 120.0
"""A record's author may be so far ahead of us: people's clocks are."""
MIN_ADVERT_TTL_S = 90.0
MAX_ADVERT_TTL_S = 600.0
"""An advert's life, in a small swarm and in the largest; it is renewed after a third of it."""
MAX_CLOCK_OFFSET_S = MIN_ADVERT_TTL_S / 4
"""Between a volunteer's clock and the members' median: two that are two thirds of that life apart
lose sight of each other."""
MAX_UNIX_S = 2**40
"""Largest time that is said."""
MAX_CHAIN = 8
"""How many invitations lie between the founder and a member: a chain fits into a Hello."""
MAX_ADMISSION_BYTES = 4096
MAX_AMENDMENTS = 64
"""Of one run; all fit into one message."""
MAX_SEATS_OF_PART = 8
"""Replicas that a waypoint names of a stage; fewer in runs of more than eight stages."""
MAX_CERTIFIED_STAGES = 64
"""A waypoint of more stages does not fit a header; such runs have none."""
MAX_PART_BYTES = 640
"""The part of a waypoint about one stage, encoded."""
