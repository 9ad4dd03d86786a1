"""A plan as text for people; imports no torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from client.cli.planning.answer import Answer, Row, StageLine
from client.cli.terminal.table import aligned
from client.plan.model import Limit, Prediction
from client.quantities import plural
from client.views.words import count_rate as human_rate
from client.views.words import duration as human_duration
from client.views.words import size as human_bytes

WORDS: dict[Limit, tuple[str, str]] = {
    "compute": ("computing", "faster or more machines would help most"),
    "link": ("links", "wider lines, larger stages or a smaller boundary codec would help most"),
    "latency": (
        "filling and draining the pipeline",
        "more microbatches per step, fewer stages or nearer machines would help most",
    ),
    "averaging": (
        "averaging",
        "more tokens per step or round, or wider lines, would help most",
    ),
}
"""The limit in words, and the remedy."""


def report(answer: Answer) -> str:
    """Return the whole answer for people."""
    assert answer.best.prediction is not None  # the best one is possible
    blocks = [
        list(_head(answer, answer.best.prediction)),
        list(_terms(answer, answer.best.prediction)),
        list(_stages(answer.stages)),
        list(_ways(answer)),
        list(_comparison(answer.alternatives)),
        list(_cost(answer)),
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block)


def _head(answer: Answer, found: Prediction) -> Iterator[str]:
    best = answer.best
    limit, help_words = WORDS[found.limit]
    replicas = sorted({stage.terms.replicas for stage in answer.stages})
    counts = str(replicas[0]) if len(replicas) == 1 else f"{replicas[0]} to {replicas[-1]}"
    yield (
        f"best for {plural(answer.machines, 'machine')} and {answer.parameters:,} parameters: "
        f"{plural(best.stages, 'stage')} x {counts} {'replica' if counts == '1' else 'replicas'},"
    )
    yield (
        f"microbatches of {plural(answer.sequences, 'sequence')}, {answer.microbatches} a "
        f"{_step(answer)} of {answer.tokens_per_step:,} tokens, {found.in_flight} in flight"
    )
    if inner := answer.inner_microbatches:
        own = max(stage.terms.own_step_s for stage in answer.stages)
        yield f"local rounds: every {inner} microbatches a step of one's own, of {_seconds(own)}"
    yield (
        f"expected: {_tokens(found.tokens_per_s)}, {found.efficiency:.0%} of what computing and "
        "links allow"
    )
    yield f"limited by {limit}: {help_words}"


def _step(answer: Answer) -> str:
    return "round" if answer.inner_microbatches else "step"


def _terms(answer: Answer, found: Prediction) -> Iterator[str]:
    parts: dict[Limit, float] = {
        "compute": found.compute_s,
        "link": found.link_s,
        "latency": found.latency_s,
        "averaging": found.averaging_s,
    }
    yield f"a {_step(answer)} takes {_seconds(found.step_s)}:"
    for name, seconds in parts.items():
        if seconds > 1e-9 * found.step_s:
            words, _ = WORDS[name]
            yield f"  {seconds / found.step_s:>4.0%}  {_seconds(seconds):>8}  {words}"


def _stages(stages: Sequence[StageLine]) -> Iterator[str]:
    yield "microbatches per second, and seconds of one microbatch or one averaging:"
    head = (
        *("stage", "layers", "replicas", "memory", "compute", "links", "both"),
        *("pass", "hop", "averaging", "waited for", ""),
    )
    rows = [
        (
            str(line.stage),
            str(line.layers),
            str(line.terms.replicas),
            human_bytes(line.memory_bytes),
            _rate(line.terms.compute_per_s),
            _rate(line.terms.link_per_s),
            _rate(line.terms.rate_per_s),
            _seconds(line.terms.compute_s),
            _seconds(line.terms.boundary_s),
            _seconds(line.terms.averaging_s),
            _seconds(line.terms.exposed_s),
            "<- slowest" if line.bottleneck else "",
        )
        for line in stages
    ]
    yield from aligned(head, rows)
    for line in stages:
        if line.host_memory_bytes:
            yield (
                f"stage {line.stage}: {human_bytes(line.host_memory_bytes)} more in the memory of "
                "a GPU's host"
            )
        if line.frozen_bytes:
            yield (
                f"stage {line.stage}: {human_bytes(line.frozen_bytes)} of frozen weights, "
                f"{human_bytes(line.state_bytes)} of adapters with their optimizer, "
                f"{human_bytes(line.averaged_bytes)} averaged a step"
            )


def _comparison(rows: Sequence[Row]) -> Iterator[str]:
    head = ("", "stages", "replicas", "in flight", "tokens/s", "limit")
    cells = []
    for each in rows:
        known = ("-", "-", "-", each.why)
        if (found := each.prediction) is not None:
            speed, limit = _speed(found.tokens_per_s), WORDS[found.limit][0]
            known = (str(each.replicas), str(found.in_flight), speed, limit)
        cells.append(("*" if each.best else "", str(each.stages), *known))
    yield from aligned(head, cells)


def _ways(answer: Answer) -> Iterator[str]:
    """Yield the ways to average side by side; nothing where there is one."""
    if len(answer.ways) < 2:
        return
    many = plural(answer.machines, "machine")
    yield f"ways to average; {many} apart would train {_tokens(answer.alone_tokens_per_s)}" + (
        ":" if answer.holds_alone else ", if one could hold the model:"
    )
    head = ("", "averaging", "stages", "tokens/s", "of that", "sent a day", "a month", "loss")
    rows = [
        (
            *("*" if each.chosen else "", each.name),
            f"{each.stages} x {each.replicas}",
            _speed(each.tokens_per_s),
            f"{each.share:.0%}",
            human_bytes(each.sent_bytes_per_day),
            human_bytes(each.sent_bytes_per_month),
            f"+{each.loss_percent:.1f} %" if each.loss_percent else "0",
        )
        if not each.why
        else ("", each.name, *("-" * 6))
        for each in answer.ways
    ]
    yield from aligned(head, rows)
    yield from (f"{each.name}: {each.why}" for each in answer.ways if each.why)


def _cost(answer: Answer) -> Iterator[str]:
    cost, steps = answer.cost, f"{answer.cost.steps:,.0f} {_step(answer)}s"
    yield f"{cost.tokens:,} tokens ({steps}) take {human_duration(cost.seconds)}"
    yield (
        f"  traffic per volunteer at most: {human_bytes(cost.sent_bytes)} sent, "
        f"{human_bytes(cost.received_bytes)} received"
    )


def _tokens(per_second: float) -> str:
    return f"{human_rate(per_second).removesuffix('/s')} tokens/s"


def _speed(per_second: float) -> str:
    return f"{per_second:,.0f}" if per_second >= 1000 else f"{per_second:.4g}"


def _rate(per_second: float) -> str:
    return "-" if per_second == float("inf") else f"{per_second:.3g}"


def _seconds(seconds: float) -> str:
    if seconds <= 0:
        return "0"
    return f"{1000 * seconds:.3g} ms" if seconds < 1 else f"{seconds:,.3g} s"
