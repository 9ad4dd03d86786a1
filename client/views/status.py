"""What a node says of itself, fact by fact: ``status`` shows all of them, the panels some.

A fact is a label and what stands behind it. Facts that do not hold, or are not known, are left out.
"""

import statistics
from collections import Counter
from collections.abc import Iterable, Iterator

from client.control.snapshot import (
    HOW_TO_UPDATE,
    WHEN_DONE,
    AuditCounts,
    ExpelledView,
    LimitsView,
    LineView,
    PauseView,
    Snapshot,
    TimeView,
)
from client.quantities import plural
from client.views import words
from client.views.span import Box, Line, Tone, cut, line, line_width, pair
from client.views.text import clean, wrap
from protocol.limits import LEAST_TO_CONVICT

Fact = tuple[str, Line]
Part = str | tuple[str, Tone]
MOST_AMENDMENTS = 4
MOST_EXPELLED = 3
MOST_MEMBERS = 3
STANDINGS: dict[str, tuple[str, Tone]] = {
    "proven": ("proven", "good"),
    "unproven": ("not proven yet", "muted"),
    "probation": ("on probation", "accent"),
    "aside": ("set aside", "warn"),
    "charged": ("charged", "warn"),
    "expelled": ("expelled", "bad"),
}


def lines_of(facts: Iterable[Fact], box: Box, labels: int = 10, most: int = 1) -> list[Line]:
    """Return facts as lines, as many as fit.

    Args:
        facts: in the order of their importance.
        box: room.
        labels: width of the labels.
        most: lines of one fact, if it is of one tone.
    """
    lines: list[Line] = []
    before = ""
    for label, value in facts:
        parts = [_fitted(value, box.width - labels)]
        if most > 1 and len(value) == 1:
            wrapped = wrap(value[0].text, box.width - labels, most)
            parts = [line((part, value[0].tone)) for part in wrapped]
        for part in parts:
            lines.append(
                cut(pair("" if label == before else label, part, labels=labels), box.width)
            )
            before = label
    return lines[: box.height]


def _fitted(value: Line, cells: int) -> Line:
    """Return a value without the muted ends for which there is no room."""
    while len(value) > 1 and value[-1].tone == "muted" and line_width(value) > cells:
        value = value[:-1]
    return value


def everything(now: Snapshot) -> list[Fact]:
    """Return all facts but the stages."""
    return [
        *run(now),
        *place(now),
        *work(now),
        *machine(now),
        *network(now),
        *trust(now),
        *recovery(now),
        *errors(now),
    ]


def one_line(now: Snapshot) -> str:
    """Return the node's activity and the swarm's progress in one line of text."""
    seats = ", ".join(f"{seat.stage} ({seat.state})" for seat in now.seats) or "none"
    step = f"step {now.step}/{now.steps}"
    if now.state == "done":
        return clean(f"done: {now.reason} | {step} | {WHEN_DONE}")
    if now.state != "training":
        return clean(f"{now.state}: {now.reason} | {step} | stage {seats}")
    left = "" if now.eta_s is None else f" | about {words.about(now.eta_s)} left"
    speed = f"{words.count(now.tokens_per_s)} tokens/s"
    peers = plural(len(now.peers), "peer")
    return clean(f"{step} | {_loss(now)} | {speed}{left} | stage {seats} | {peers}")


# --- the run ---------------------------------------------------------------------------------


def run(now: Snapshot) -> Iterator[Fact]:
    """Yield what is trained, how far it is, and what the founder has changed."""
    yield _fact("swarm", (now.swarm_name, "strong"), (f" ({now.swarm[:12]})", "muted"))
    if now.purpose:
        yield _fact("for", now.purpose)
    yield _fact("progress", f"step {now.step} of {now.steps}, {_loss(now)}")
    if now.state == "done":
        yield _fact("next", WHEN_DONE)
    else:
        yield _fact("speed", f"{words.count(now.tokens_per_s)} tokens/s", (_left(now), "muted"))
    for one in now.amendments[-MOST_AMENDMENTS:]:
        yield _fact("amended", one.words, (f" (from step {one.from_step:,} on)", "muted"))
    if now.newer:
        yield _fact("program", (now.newer, "warn"), (f" ({HOW_TO_UPDATE})", "muted"))
    for other in now.beside:
        yield _fact("two lines", (other_line(other), "warn"))
    if now.given_up is not None:
        at = words.clock(now.given_up.time, False)
        yield _fact("given up", (f"{at} {now.given_up.words}", "warn"))
    yield from held_out(now)
    if now.certified_version:
        links = plural(now.certified_links, "link")
        told = f"version {now.certified_version}, {links} from the founder's signature"
        yield _fact("certified", told)


def other_line(other: LineView) -> str:
    """Say that others train the run apart from this volunteer, and what becomes of it."""
    who = [words.short(peer) for peer in other.members[:MOST_MEMBERS]]
    if more := len(other.members) - len(who):
        who.append(f"{more} more")
    train = "trains" if len(other.members) == 1 else "train"
    return (
        f"{', '.join(who)} {train} this run apart from this volunteer, at version {other.version}: "
        "one of both lines stands, and the other goes over to it by itself"
    )


def held_out(now: Snapshot) -> Iterator[Fact]:
    """Yield the newest loss on text that nobody trains on."""
    known = now.held_out
    if known is None:
        return
    told = f"told by {known.vouchers} of {known.claims} members"
    if known.claims == 1:
        told = "one member's claim"
    if not known.claims:
        told = "of an earlier session"
    yield _fact(
        "held out",
        (f"{known.loss:.3f}", "second"),
        (" at step ", "muted"),
        words.count(known.version),
        f", {known.bits_per_byte:.3f} bits/byte",
        (f", {told}", "muted"),
        (f", on {words.count(known.tokens)} tokens", "muted"),
    )


def _loss(now: Snapshot) -> str:
    if now.loss is None:
        return "no loss yet"
    alone = " (reported by one volunteer only)" if now.loss_vouchers == 1 else ""
    return f"loss {now.loss:.4f}{alone}"


def _left(now: Snapshot) -> str:
    return "" if now.eta_s is None else f", about {words.about(now.eta_s)} left"


# --- this volunteer --------------------------------------------------------------------------


def place(now: Snapshot) -> Iterator[Fact]:
    """Yield who we are, our state, what we wait for, and what would happen if we left."""
    yield _fact("you are", (words.named(now.peer, now.names), "key"), (f", {now.peer}", "muted"))
    word, tone = words.state_word(now.state)
    more = f" ({now.reason})" if now.state == "training" else ""
    yield _fact("state", (word.lower(), tone), f": {reason(now)}", (more, "muted"))
    for seat in now.seats:
        if seat.waits_for:
            yield _fact("waits", f"{seat.waits_for}, for {words.duration(seat.for_s)}")
    yield _fact("leaving", drain_words(now))


def pause_words(paused: PauseView) -> str:
    """Say since when a volunteer is paused, and what ends that."""
    ends = [words.clock(paused.until, False)] if paused.until else []
    ends += ["volunteer resume"] if paused.by_owner else []
    since = words.clock(paused.since, False)
    return f"since {since}, until {' or '.join(ends) or 'its cause is over'}"


def without_stage(now: Snapshot) -> str:
    """Say why this volunteer holds no stage and gets none now; empty: it may get one."""
    if now.paused is not None:
        return "no stage while paused"
    if now.state == "relaying":
        return "no stage: it only relays"
    return "no stage any more" if now.state == "stopping" else ""


def reason_alone(now: Snapshot) -> str:
    """Return the node's reason for its state without the word of the state before it."""
    return clean(now.reason.removeprefix(f"{now.state} "))


def reason(now: Snapshot) -> str:
    """Describe why the node is in its state, without terms of the protocol."""
    if now.state == "paused" and now.paused is not None:
        return f"{pause_words(now.paused)}: {reason_alone(now)}"
    if now.state != "training":
        return reason_alone(now)
    seats = [f"{seat.stage}" for seat in now.seats if seat.state == "serving"]
    stages = "stage" if len(seats) == 1 else "stages"
    mine = f"you serve {stages} {words.listed(seats)}" if seats else "you serve no stage yet"
    bare = sum(all(r.state != "serving" for r in stage.replicas) for stage in now.stages)
    rest = "every stage has a volunteer" if not bare else f"{bare} without a volunteer"
    left = f"about {words.about(now.eta_s)} left; " if now.eta_s is not None else ""
    return f"{left}{mine}; {rest}"


def drain_words(now: Snapshot) -> tuple[str, Tone]:
    """Say who replaces us if we leave; of a run that is complete nobody has to."""
    staying = {seat.stage: seat.staying for seat in now.seats if seat.staying is not None}
    done = now.state == "done"
    if not staying:
        return "nothing changes: you serve no stage", "plain"
    last = [str(stage) for stage, others in staying.items() if not others]
    if last:
        rest = "its last version stays on this disk" if done else "the swarm would wait"
        noun = "stage" if len(last) == 1 else "stages"
        return f"{noun} {words.listed(last)} would have nobody: {rest}", "warn"
    kept = ", ".join(f"stage {stage} keeps {others}" for stage, others in staying.items())
    noun = "volunteer" if list(staying.values())[-1] == 1 else "volunteers"
    rest = "others serve the model" if done else "training goes on"
    return f"{kept} {noun}: {rest}", "plain"


def work(now: Snapshot) -> Iterator[Fact]:
    """Yield the stages that we hold, how fast we work, and what we have done."""
    for seat in sorted(now.seats, key=lambda seat: seat.seat)[:4]:
        tone: Tone = "good" if seat.state == "serving" else "accent"
        also = " (also)" if seat.seat else ""
        yield _fact(
            "holds", (f"stage {seat.stage} ", "strong"), (seat.state, tone), (also, "muted")
        )
    if not now.seats:
        yield _fact("holds", (without_stage(now) or "no stage yet", "muted"))
    share = 100 * now.own_tokens_per_s / now.tokens_per_s if now.tokens_per_s > 0 else 0.0
    own = words.count(now.own_tokens_per_s)
    yield _fact("share", own, (" tokens/s, ", "muted"), f"{share:.0f} %", (" of all", "muted"))
    if now.time_spent is not None:
        yield "time", _time(now.time_spent)
    done = now.credit
    yield _fact(
        "given",
        words.count(done.microbatches), (" microbatches, ", "muted"),
        words.count(done.tokens), (" tokens", "muted"), (_place(now), "muted"),
    )  # fmt: skip


def _time(spent: TimeView) -> Line:
    others = ("averaging", spent.averaging), ("waiting", spent.waiting), ("resting", spent.resting)
    return line(
        f"{100 * spent.computing:.0f} % computing",
        *((f", {100 * share:.0f} % {on}", "muted") for on, share in others if share),
    )


def _place(now: Snapshot) -> str:
    """Return our place on the leaderboard, if we are on it."""
    places = (place for place, one in enumerate(now.contributors, start=1) if one.peer == now.peer)
    place = next(places, None)
    return "" if place is None else f"; place {place} in the steps closed here"


# --- this machine ----------------------------------------------------------------------------


def machine(now: Snapshot) -> Iterator[Fact]:
    """Yield the memory and the devices that are used, and what the owner allows."""
    used = now.rss_bytes + sum(worker.rss_bytes for worker in now.workers)
    limit = now.limits.memory_bytes
    tone: Tone = "warn" if limit and used > 0.9 * limit else "plain"
    of = f" of {words.size(limit)}" if limit else ""
    node = f", {words.size(now.rss_bytes)} of it the node's"
    yield _fact("memory", (words.size(used), tone), (of, "muted"), (node, "muted"))
    yield "worker", _workers(now)
    yield _fact("limits", limits(now.limits))
    yield _fact("running", words.duration(now.uptime_s))


def _workers(now: Snapshot) -> Line:
    workers, restarts = now.workers, now.counters.worker_restarts
    running, threads = sum(one.pid is not None for one in workers), now.limits.threads_now
    waits = "starting" if workers else "stopped"
    return line(
        (
            f"{running} running" if running else waits,
            "good" if 0 < running == len(workers) else "warn",
        ),
        (f", restarted {restarts}x" if restarts else "", "warn"),
        (f" with {plural(threads, 'thread')}" if running and threads else "", "muted"),
    )


def limits(found: LimitsView) -> str:
    """Return the owner's limits in one line."""
    used = words.size(found.used_bytes)
    up, down = words.per_s(found.upload_bytes_per_s), words.per_s(found.download_bytes_per_s)
    told = [
        plural(found.threads, "thread") if found.threads else "",
        f"{found.compute_share} % of the time" if 0 < found.compute_share < 100 else "",
        f"{words.size(found.memory_bytes)} RAM" if found.memory_bytes else "",
        f"▲ {up}" if found.upload_bytes_per_s else "",
        f"▼ {down}" if found.download_bytes_per_s else "",
        f"{used} of {words.size(found.daily_bytes)} today" if found.daily_bytes else "",
        f"{found.vram_share} % of the GPU's memory" if 0 < found.vram_share < 100 else "",
        *(clean(word, 40) for word in found.when[:4]),
    ]
    return ", ".join(filter(None, told)) or f"none; {used} sent and received today"


# --- the network -----------------------------------------------------------------------------


def network(now: Snapshot) -> Iterator[Fact]:
    """Yield the traffic, the links, and how others reach this node."""
    moved, known = now.network, plural(len(now.peers), "known peer")
    sent, received = words.size(moved.sent_bytes), words.size(moved.received_bytes)
    yield _fact("network", f"{sent} sent, {received} received")
    trips = [peer.rtt_ms for peer in now.peers if peer.rtt_ms is not None]
    trip = ""
    if trips:
        trip = f"; {statistics.median(trips):.0f} ms there and back, {max(trips):.0f} at most"
    yield _fact("links", f"{moved.links} of {known}", (trip, "muted"))
    yield from _relays(now)
    if now.reach.state != "unknown":
        for told in filter(None, (now.reach.words, now.reach.next_step)):
            yield _fact("reached", told)
    if now.reach.change:
        yield _fact("changed", now.reach.change)
    for address in now.addresses[:2]:
        yield _fact("address", address)


def _relays(now: Snapshot) -> Iterator[Fact]:
    relay = now.relay
    if relay.through:
        through = words.listed([words.named(peer, now.names) for peer in relay.through])
        yield _fact("reached", f"through {through}, which relay: nobody can dial this volunteer")
    if relay.rate_bytes_per_s:
        members, links = plural(relay.members, "member"), plural(relay.circuits, "connection")
        at = f"at up to {words.per_s(relay.rate_bytes_per_s)}"
        passed = f"{words.size(relay.passed_bytes)} so far"
        yield _fact("relays", f"for {members}, {links}, {at}; {passed}")


# --- trust and faults ------------------------------------------------------------------------


def averaging(now: Snapshot) -> Iterator[Fact]:
    """Yield how gradients are averaged if it is not by their exact sum, and where that is less."""
    from model_zoo.specs.aggregation import DEFAULT, RULES  # the screen starts without the zoo

    rule = RULES.get(now.aggregation)
    if rule is None or now.aggregation == DEFAULT:
        return
    few = [str(stage.stage) for stage in now.stages if len(stage.replicas) < rule.robust_from]
    stages = f"stage {few[0]}" if len(few) == 1 else f"stages {', '.join(few)}"
    lacking = f"; {stages}: norms only, fewer than {rule.robust_from} volunteers" if few else ""
    yield _fact("averaging", f"{now.aggregation}: gradients are {rule.about}{lacking}")


def trust(now: Snapshot) -> Iterator[Fact]:
    """Yield our audits, how many members are trusted, and who was expelled last; nothing in a
    run in which there is nothing to say of it."""
    audits = now.audits
    if audits is not None:
        found = audits.results
        tone: Tone = "bad" if found.disagree else "good"
        results = audit_results(found) if found.drawn else ""
        of = f"{found.drawn} of {audits.contributions} contributions audited"
        yield _fact("audits", *([(results, tone), (f"; {of}", "muted")] if results else [of]))
        for one in audits.open[-MOST_EXPELLED:]:
            authors = words.listed([words.short(author) for author in one.authors])
            told = f"stage {one.stage}: {authors} against {words.short(one.peer)}"
            yield _fact("audits", (f"{told}, which is no majority", "warn"))
    if audits is None and not now.expelled:
        return
    counts = Counter[str](one.standing for one in now.trust)
    parts: list[Part] = []
    for key, (word, tone) in STANDINGS.items():
        if counts[key]:
            parts += [", "] if parts else []
            parts.append((f"{counts[key]} {word}", tone))
    if parts:
        yield _fact("members", *parts)
    out = now.expelled[: -MOST_EXPELLED - 1 : -1]
    for gone in out:
        yield _fact("expelled", (gone.reason, "bad"))
    if len(now.expelled) > len(out):
        yield _fact("expelled", f"{len(now.expelled) - len(out)} more: volunteer evidence")
    for step in dict.fromkeys(map(where_to_see, out)):
        yield _fact("evidence", (step, "muted"))
    if small := not_judged(now):
        yield _fact("too few", (small, "warn"))


def audit_results(found: AuditCounts) -> str:
    """Return what audits came to: ``all agree``, or ``11 agree, 1 does not agree``."""
    if found.agree == found.drawn:
        return "all agree"
    do = "does" if found.disagree == 1 else "do"
    parts = [
        f"{found.agree} agree" if found.agree else "",
        f"{found.disagree} {do} not agree" if found.disagree else "",
        f"{found.unchecked} could not be checked" if found.unchecked else "",
    ]
    return ", ".join(filter(None, parts))


def not_judged(now: Snapshot) -> str:
    """Say in which stages of an audited run a liar could not be convicted; empty: in none."""
    if now.audits is None:
        return ""
    serving = {s.stage: sum(r.state == "serving" for r in s.replicas) for s in now.stages}
    small = [str(stage) for stage, count in serving.items() if count < LEAST_TO_CONVICT]
    if not small:
        return ""
    where = f"stage{'s' if len(small) > 1 else ''} {', '.join(small)}"
    return f"nobody can be convicted in {where}: that takes {LEAST_TO_CONVICT} volunteers a stage"


def where_to_see(out: ExpelledView) -> str:
    """Return where to see why somebody was expelled."""
    if out.by == "inviter":
        return "volunteer status members"
    return "volunteer evidence, a file that anybody can verify"


def recovery(now: Snapshot) -> Iterator[Fact]:
    """Yield what was repaired since the node started, and what was refused."""
    found = now.counters
    good: Tone = "bad" if found.doubled_microbatches else "good"
    yield _fact(
        "recovery",
        f"{words.count(found.rerouted_microbatches)} sent elsewhere, ",
        f"{words.count(found.lost_microbatches)} computed again, ",
        (f"{words.count(found.doubled_microbatches)} counted twice", good),
        (f"; {found.rounds_restarted} of {found.rounds_committed} rounds begun again", "muted"),
        (_reasons(found.restarts_led), "muted"),
    )
    if refused := found.refused_by_reason:
        frames = f"{words.count(sum(refused.values()))} frames"
        yield _fact("refused", frames, (_reasons(refused), "muted"))


def errors(now: Snapshot) -> Iterator[Fact]:
    """Yield the last error, if there is one that is not over."""
    if now.last_error:
        at = f"{words.clock(now.last_error_at, False)} " if now.last_error_at else ""
        yield _fact("error", (at, "muted"), (now.last_error, "bad"))


def _reasons(counts: dict[str, int]) -> str:
    """Return reasons with their counts, the most frequent first; empty without any."""
    most = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return f" ({', '.join(f'{why} {count}' for why, count in most)})" if most else ""


def _fact(label: str, *parts: Part) -> Fact:
    return label, line(*parts)
