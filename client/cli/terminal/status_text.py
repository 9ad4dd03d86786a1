"""A snapshot in words: the full report of ``status`` and the one line that ``join`` shows.

Pure text, no terminal control; works in pipes and for screen readers.
"""

from __future__ import annotations

from client.cli.terminal.output import (
    human_bytes,
    human_duration,
    human_line,
    human_rate,
    printable,
)
from client.cli.terminal.when import clock
from client.control.names import named
from client.control.snapshot import (
    WHEN_DONE,
    CardView,
    LimitsView,
    RankView,
    ReplicaView,
    Snapshot,
    StageView,
)
from client.control.trust_words import audits_today, next_step, not_judged
from client.quantities import plural
from model_zoo.specs.aggregation import DEFAULT as SUM
from model_zoo.specs.aggregation import RULES

MOST_OF_SAMPLE = 120
"""Characters of a prompt, and of what follows, in one line."""
MOST_AMENDMENTS = 4
"""Lines of the changes that the founder made last."""
MOST_EXPELLED = 4
"""Lines of those who were expelled last."""


def status_report(now: Snapshot) -> str:
    """Return several lines: state, progress, the stage map, resources."""
    lines = [
        f"swarm     {now.swarm_name} ({now.swarm[:12]})",
        *([f"for       {now.purpose}"] if now.purpose else []),
        f"volunteer {now.peer}{_called(now)}",
        f"state     {now.state}: {now.reason}",
        *_pause_lines(now),
        f"progress  step {now.step} of {now.steps}, {_loss(now)}",
        *amendment_lines(now),
        *_given_up_lines(now),
        *_held_out_lines(now),
        *_sample_lines(now),
        *_pace_lines(now),
        *(_stage_line(stage, now) for stage in now.stages),
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
        *_relay_lines(now),
        f"limits    {limits_words(now.limits)}",
        f"worker    {now.worker.state}{_threads(now.limits)}, "
        f"{human_bytes(now.worker.rss_bytes)}; "
        f"node {human_bytes(now.rss_bytes)}, up {human_duration(now.uptime_s)}",
        *_rank_lines(now),
        *_utilization_lines(now),
        *_machine_lines(now),
        f"recovery  {now.counters.rerouted_microbatches} rerouted, "
        f"{now.counters.lost_microbatches} replayed, {now.counters.doubled_microbatches} counted "
        f"twice, {now.counters.rounds_restarted} of {now.counters.rounds_committed} rounds "
        f"restarted{_reasons(now.counters.restarts_led)}, "
        f"{now.counters.refused_frames} frames refused{_reasons(now.counters.refused_by_reason)}",
        f"given     {now.credit.microbatches} microbatches, {now.credit.tokens} tokens"
        f"{_vouched(now)}",
        *_certified_lines(now),
        *_audit_lines(now),
        *_expelled_lines(now),
        *_error_lines(now),
    ]
    return "\n".join(lines)


def amendment_lines(now: Snapshot) -> list[str]:
    """Return what the founder has changed in the run."""
    lines = []
    for one in now.amendments[-MOST_AMENDMENTS:]:
        when = "not agreed on by the stages yet"
        if one.from_step is not None:
            when = f"from step {one.from_step:,} on"
        lines.append(f"amended   {one.words} ({when})")
    if (number := now.contradicted_amendment) is not None:
        lines.append(
            f"amended   the founder has signed two different amendments {number}: neither counts"
        )
    return lines


def _utilization_lines(now: Snapshot) -> list[str]:
    """Return what each worker makes of its device, once it has computed."""
    lines = []
    for worker in now.workers:
        if not worker.flop_per_s:
            continue
        words = f"stage {worker.stage} {human_flops(worker.flop_per_s)}"
        if worker.mfu is not None and worker.mfu_computing is not None:
            words += (
                f", {100 * worker.mfu:.1f} % of the device's peak (MFU), "
                f"{100 * worker.mfu_computing:.1f} % while it computes"
            )
        lines.append(f"computes  {words}")
    return lines


def _machine_lines(now: Snapshot) -> list[str]:
    """Return the measured speed of this machine, and what its GPUs' driver tells."""
    machine = now.machine
    peaks = [
        f"{human_flops(peak)} in {name}"
        for name, peak in sorted(machine.peak_flop_per_s.items())
        if peak
    ]
    copies = ""
    if machine.platform != "cpu" and machine.to_device_bytes_per_s:
        copies = (
            f"; copies {human_bytes(int(machine.to_device_bytes_per_s))}/s to the GPU, "
            f"{human_bytes(int(machine.to_host_bytes_per_s))}/s back"
        )
    lines = [f"measured  {', '.join(peaks)}{copies}"] if peaks else []
    return lines + [f"card      {words}" for words in map(card_words, machine.cards) if words]


def card_words(card: CardView) -> str:
    """Return what the driver tells of a GPU; empty: nothing."""
    limit = f" of {card.power_limit_w:.0f}" if card.power_limit_w is not None else ""
    slow = f" (slows down at {card.slows_at_c})" if card.slows_at_c is not None else ""
    told = [
        "" if card.power_w is None else f"{card.power_w:.0f}{limit} W",
        "" if card.temperature_c is None else f"{card.temperature_c} °C{slow}",
        "" if card.used_bytes is None else f"{human_bytes(card.used_bytes)} in use",
    ]
    words = ", ".join(filter(None, told))
    return f"{card.device}: {words}" if words else ""


def human_flops(flop_per_s: float) -> str:
    """Return a speed of computing in words, as ``1.2 TFLOP/s``."""
    if flop_per_s >= 1e12:
        return f"{flop_per_s / 1e12:.3g} TFLOP/s"
    return f"{flop_per_s / 1e9:.3g} GFLOP/s"


def _rank_lines(now: Snapshot) -> list[str]:
    """Return what each device of a worker with several has done."""
    return [
        f"devices   {', '.join(map(_rank_words, worker.ranks))}"
        for worker in now.workers
        if worker.ranks and worker.stage is not None
    ]


def _rank_words(rank: RankView) -> str:
    return f"{rank.device} {rank.passes:,} passes"


def _reach_lines(now: Snapshot) -> list[str]:
    """Return whether others reach this volunteer, as far as that is known, what would help, and how
    its network has changed."""
    found = [now.reach.words, now.reach.next_step] if now.reach.state != "unknown" else []
    changed = [f"changed   {now.reach.change}"] if now.reach.change else []
    return [f"reached   {words}" for words in found if words] + changed


def _averaging_lines(now: Snapshot) -> list[str]:
    """Return how gradients are averaged if it is not by their exact sum, and where that is less."""
    rule = RULES.get(now.aggregation)
    if rule is None or now.aggregation == SUM:
        return []
    few = [str(stage.stage) for stage in now.stages if len(stage.replicas) < rule.replicas]
    stages = f"stage {few[0]}" if len(few) == 1 else f"stages {', '.join(few)}"
    less = "steps close with three and no fewer" if rule.secret else "norms only"
    less = "one sum of all, whoever lies" if rule.buckets > 1 else less
    lacking = f"; {stages}: {less}, fewer than {rule.replicas} volunteers" if few else ""
    return [f"averaging {now.aggregation}: gradients are {rule.about}{lacking}"]


def _relay_lines(now: Snapshot) -> list[str]:
    relay = now.relay
    lines = []
    if relay.through:
        through = " and ".join(named(peer, now.names) for peer in relay.through)
        lines.append(f"reached   through {through}, which relay: nobody can dial this volunteer")
        if 0 < relay.through_bytes_per_s < relay.line_bytes_per_s:
            lent, line = map(human_line, (relay.through_bytes_per_s, relay.line_bytes_per_s))
            lines.append(
                f"gain      they lend {lent} to all whom they relay for; with a port that others "
                f"can dial it would be your own line's {line}"
            )
    if relay.rate_bytes_per_s:
        lines.append(
            f"relays    for {plural(relay.members, 'member')}, "
            f"{plural(relay.circuits, 'connection')}, at up to "
            f"{human_line(relay.rate_bytes_per_s)}; {human_bytes(relay.passed_bytes)} so far"
        )
    return lines


def _reasons(counts: dict[str, int]) -> str:
    """Return reasons with their counts, the most frequent first; empty without any."""
    most = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return f" ({', '.join(f'{why} {count}' for why, count in most)})" if most else ""


def _threads(limits: LimitsView) -> str:
    if not limits.threads_now:
        return ""
    threads = plural(limits.threads_now, "thread")
    beside = f" ({limits.volunteers} volunteers compute here)" if limits.volunteers > 1 else ""
    return f" with {threads} of {limits.cores}{beside}"


def _pace_lines(now: Snapshot) -> list[str]:
    if now.state == "done":
        return [f"next      {WHEN_DONE}"]
    swarm, own = human_rate(now.tokens_per_s), human_rate(now.own_tokens_per_s)
    speed = f"speed     {swarm} tokens in the swarm, {own} of it here"
    if now.eta_s is None:
        return [speed]
    return [speed, f"left      about {human_duration(now.eta_s)} at this speed"]


def _held_out_lines(now: Snapshot) -> list[str]:
    """Return the newest loss on held-out text, or when the first one comes."""
    known = now.held_out
    if known is None:
        return []
    told = f"told by {known.vouchers} of {known.claims} members that computed it"
    if known.claims == 1:
        told = "one member's claim"
    if not known.claims:
        told = "of an earlier session"
    return [
        f"held out  loss {known.loss:.4f}, {known.bits_per_byte:.4f} bits per byte at step "
        f"{known.version}, on {known.tokens} tokens ({told})"
    ]


def _sample_lines(now: Snapshot) -> list[str]:
    """Return what this machine let the model write, a line for each prompt."""
    return [
        f"sample    step {one.version}: {_one_line(one.prompt)} → {_one_line(one.text)}"
        for one in now.samples
    ]


def _one_line(text: str) -> str:
    """Return the beginning of a text in one line that can be printed."""
    shown = " ".join(printable(text).split())
    return shown if len(shown) <= MOST_OF_SAMPLE else f"{shown[: MOST_OF_SAMPLE - 1]}…"


def _certified_lines(now: Snapshot) -> list[str]:
    """Return the newest version that members certify, if there is one."""
    if not now.certified_version:
        return []
    links = plural(now.certified_links, "link")
    return [f"certified version {now.certified_version}, {links} from the founder's signature"]


def _audit_lines(now: Snapshot) -> list[str]:
    """Return what our audits came to, and who is charged without a majority."""
    audits = now.audits
    if audits is None:
        return []
    lines = [audits_today(audits), *filter(None, [not_judged(now)])]
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


def _given_up_lines(now: Snapshot) -> list[str]:
    if now.given_up is None:
        return []
    return [f"given up  {clock(now.given_up.at)} {now.given_up.words}"]


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
        plural(limits.threads, "thread") if limits.threads else "",
        f"{limits.compute_share} % of the time" if limits.compute_share else "",
        f"{human_bytes(limits.memory_bytes)} memory" if limits.memory_bytes else "",
        f"{limits.vram_share} % of the GPU's memory" if limits.vram_share else "",
        f"up {human_line(limits.upload_bytes_per_s)}" if limits.upload_bytes_per_s else "",
        f"down {human_line(limits.download_bytes_per_s)}" if limits.download_bytes_per_s else "",
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
        f"{_left(now)}"
        f" | stage {seats} | {_peers(now)}"
    )


def _left(now: Snapshot) -> str:
    return "" if now.eta_s is None else f" | about {human_duration(now.eta_s)} left"


def _peers(now: Snapshot) -> str:
    return plural(len(now.peers), "peer")


def _loss(now: Snapshot) -> str:
    if now.loss is None:
        return "no loss yet"
    alone = " (reported by one volunteer only)" if now.loss_vouchers == 1 else ""
    return f"loss {now.loss:.4f}{alone}"


def _called(now: Snapshot) -> str:
    name = now.names.get(now.peer)
    return f", called {name}" if name else ""


def _vouched(now: Snapshot) -> str:
    """Return our place on the leaderboard, if others vouch for our work."""
    places = enumerate(now.contributors, start=1)
    found = next(((place, one) for place, one in places if one.peer == now.peer), None)
    if found is None or not found[1].vouchers:
        return " by its own count: volunteer leaderboard"
    place, one = found
    return f"; {one.microbatches} vouched for by others, place {place}: volunteer leaderboard"


def _stage_line(stage: StageView, now: Snapshot) -> str:
    holders = ", ".join(_holder(replica, now) for replica in stage.replicas) or "nobody"
    layers = plural(stage.layers, "layer")
    return f"stage {stage.stage:<3} {layers}, version {stage.version}: {holders}"


def _holder(replica: ReplicaView, now: Snapshot) -> str:
    name = "this volunteer" if replica.peer == now.peer else named(replica.peer, now.names)
    return f"{name} ({replica.state}, {replica.rate:.2g} microbatches/s)"
