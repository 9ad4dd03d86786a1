"""A snapshot in words: the full report of ``status`` and the one line that ``join`` shows.

Pure text, no terminal control; works in pipes and for screen readers.
"""

from __future__ import annotations

from client.cli.terminal.output import human_bytes, human_duration, human_rate
from client.cli.terminal.when import clock
from client.control.snapshot import (
    WHEN_DONE,
    LimitsView,
    ReplicaView,
    Snapshot,
    StageView,
)
from client.control.trust_words import audits_today, next_step
from model_zoo.specs.aggregation import DEFAULT as SUM
from model_zoo.specs.aggregation import RULES
from protocol.ids import short

MOST_EXPELLED = 4
"""Lines of those who were expelled last."""


def status_report(now: Snapshot) -> str:
    """Return several lines: state, progress, the stage map, resources."""
    lines = [
        f"swarm     {now.swarm_name} ({now.swarm[:12]})",
        f"volunteer {now.peer}",
        f"state     {now.state}: {now.reason}",
        *_pause_lines(now),
        f"progress  step {now.step} of {now.steps}, {_loss(now)}",
        *_pace_lines(now),
        *(_stage_line(stage, now.peer) for stage in now.stages),
        *_averaging_lines(now),
        *(
            f"waits     {held.waits_for}, for {human_duration(held.for_s)}"
            for held in now.held
            if held.waits_for
        ),
        *(f"leaving   {leaving.words}" for leaving in now.leaving),
        f"network   {_peers(now)}, {human_bytes(now.network.sent_bytes)} sent, "
        f"{human_bytes(now.network.received_bytes)} received",
        *_reach_lines(now),
        f"limits    {limits_words(now.limits)}",
        f"worker    {now.worker.state}{_threads(now.limits)}, "
        f"{human_bytes(now.worker.rss_bytes)}; "
        f"node {human_bytes(now.rss_bytes)}, up {human_duration(now.uptime_s)}",
        f"recovery  {now.counters.rerouted_microbatches} rerouted, "
        f"{now.counters.lost_microbatches} replayed, {now.counters.doubled_microbatches} counted "
        f"twice, {now.counters.rounds_restarted} of {now.counters.rounds_committed} rounds "
        f"restarted{_reasons(now.counters.restarts_led)}, "
        f"{now.counters.refused_frames} frames refused{_reasons(now.counters.refused_by_reason)}",
        f"given     {now.credit.microbatches} microbatches, {now.credit.tokens} tokens",
        *_certified_lines(now),
        *_audit_lines(now),
        *_expelled_lines(now),
        *_error_lines(now),
    ]
    return "\n".join(lines)


def _reach_lines(now: Snapshot) -> list[str]:
    """Return whether others reach this volunteer, as far as that is known, and what would help."""
    found = [now.reach.words, now.reach.next_step] if now.reach.state != "unknown" else []
    return [f"reached   {words}" for words in found if words]


def _averaging_lines(now: Snapshot) -> list[str]:
    """Return how gradients are averaged if it is not by their exact sum, and where that is less."""
    rule = RULES.get(now.aggregation)
    if rule is None or now.aggregation == SUM:
        return []
    few = [str(stage.stage) for stage in now.stages if len(stage.replicas) < rule.replicas]
    stages = f"stage {few[0]}" if len(few) == 1 else f"stages {', '.join(few)}"
    less = "steps close with three and no fewer" if rule.secret else "norms only"
    lacking = f"; {stages}: {less}, fewer than {rule.replicas} volunteers" if few else ""
    return [f"averaging {now.aggregation}: gradients are {rule.about}{lacking}"]


def _reasons(counts: dict[str, int]) -> str:
    """Return reasons with their counts, the most frequent first; empty without any."""
    most = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return f" ({', '.join(f'{why} {count}' for why, count in most)})" if most else ""


def _threads(limits: LimitsView) -> str:
    if not limits.threads_now:
        return ""
    threads = "1 thread" if limits.threads_now == 1 else f"{limits.threads_now} threads"
    beside = f" ({limits.volunteers} volunteers compute here)" if limits.volunteers > 1 else ""
    return f" with {threads} of {limits.cores}{beside}"


def _pace_lines(now: Snapshot) -> list[str]:
    if now.state == "done":
        return [f"next      {WHEN_DONE}"]
    swarm, own = human_rate(now.tokens_per_s), human_rate(now.own_tokens_per_s)
    return [f"speed     {swarm} tokens in the swarm, {own} of it here"]


def _certified_lines(now: Snapshot) -> list[str]:
    """Return the newest version that members certify, if there is one."""
    if not now.certified_version:
        return []
    links = "one link" if now.certified_links == 1 else f"{now.certified_links} links"
    return [f"certified version {now.certified_version}, {links} from the founder's signature"]


def _audit_lines(now: Snapshot) -> list[str]:
    """Return what our audits came to, and who is charged without a majority."""
    audits = now.audits
    if audits is None:
        return []
    lines = [audits_today(audits)]
    lines += [
        f"stage {one.stage}: {', '.join(author[-6:] for author in one.authors)} against "
        f"{one.peer[-6:]}, which is no majority"
        for one in audits.open[-MOST_EXPELLED:]
    ]
    return [f"audits    {line}" for line in lines]


def _expelled_lines(now: Snapshot) -> list[str]:
    """Return who was expelled last, how many more there are, and where the evidence is."""
    shown = now.expelled[-MOST_EXPELLED:]
    lines = [f"expelled  {out.reason}" for out in shown]
    more = len(now.expelled) - len(lines)
    lines += [f"expelled  {more} more: volunteer evidence ls"] if more else []
    return [*lines, *(f"evidence  {words}" for words in dict.fromkeys(map(next_step, shown)))]


def _error_lines(now: Snapshot) -> list[str]:
    if not now.last_error:
        return []
    at = f"{clock(now.last_error_at)} " if now.last_error_at else ""
    return [f"error     {at}{now.last_error}"]


def _pause_lines(now: Snapshot) -> list[str]:
    if now.paused is None:
        return []
    until = clock(now.paused.until) if now.paused.until else "volunteer resume"
    return [f"paused    since {clock(now.paused.since)}, until {until}"]


def limits_words(limits: LimitsView) -> str:
    """Return the owner's limits in one line."""
    used = human_bytes(limits.used_bytes)
    words = [
        f"{limits.threads} threads" if limits.threads > 1 else "1 thread" * limits.threads,
        f"{limits.compute_share} % of the time" if limits.compute_share else "",
        f"{human_bytes(limits.memory_bytes)} memory" if limits.memory_bytes else "",
        f"{limits.vram_share} % of the GPU's memory" if limits.vram_share else "",
        f"up {human_bytes(limits.upload_bytes_per_s)}/s" if limits.upload_bytes_per_s else "",
        f"down {human_bytes(limits.download_bytes_per_s)}/s" if limits.download_bytes_per_s else "",
        f"{used} of {human_bytes(limits.daily_bytes)} today" if limits.daily_bytes else "",
        f"{limits.power_w} W" if limits.power_w else "",
        *limits.when,
    ]
    return ", ".join(filter(None, words)) or f"none; {used} sent and received today"


def progress_line(now: Snapshot) -> str:
    """Return one line for a terminal: the node's activity and the swarm's progress."""
    seats = ", ".join(f"{seat.stage} ({seat.state})" for seat in now.seats) or "none"
    if now.state == "done":
        return f"done: {now.reason} | step {now.step}/{now.steps} | {WHEN_DONE}"
    if now.state != "training":
        return f"{now.state}: {now.reason} | step {now.step}/{now.steps} | stage {seats}"
    return (
        f"step {now.step}/{now.steps} | {_loss(now)} | {human_rate(now.tokens_per_s)} tokens"
        f" | stage {seats} | {_peers(now)}"
    )


def _peers(now: Snapshot) -> str:
    return f"{len(now.peers)} {'peer' if len(now.peers) == 1 else 'peers'}"


def _loss(now: Snapshot) -> str:
    if now.loss is None:
        return "no loss yet"
    alone = " (reported by one volunteer only)" if now.loss_vouchers == 1 else ""
    return f"loss {now.loss:.4f}{alone}"


def _stage_line(stage: StageView, own: str) -> str:
    holders = ", ".join(_holder(replica, own) for replica in stage.replicas) or "nobody"
    return f"stage {stage.stage:<3} {stage.layers} layers, version {stage.version}: {holders}"


def _holder(replica: ReplicaView, own: str) -> str:
    name = "this volunteer" if replica.peer == own else short(replica.peer)
    return f"{name} ({replica.state}, {replica.rate:.2g} microbatches/s)"
