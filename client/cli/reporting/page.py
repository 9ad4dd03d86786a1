"""The report as one HTML page that needs nothing else: no script, no font, no image, no network.

Names, states and reasons come from strangers: ``_said`` cleans and escapes every text, and the
page's own policy forbids whatever would be loaded or run. The page is meant to be shown to others,
so free texts lose addresses and secrets.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape

from client.cli.reporting.chart import chart
from client.cli.reporting.facts import FaultFacts, MemberFacts, Report
from client.control.snapshot import ContributorView
from client.control.trust_words import audit_results
from client.control.updates import HeldOutPoint
from client.quantities import plural
from client.redaction import Redactor
from client.views import words
from client.views.text import clean

GENERATOR = "volunteer report"
OURS = f'<meta name="generator" content="{GENERATOR}">'
"""By this a page of ours is known, so that nothing else is overwritten."""
MOST_ROWS = 200
"""Of one table."""
_HEAD = f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
{OURS}
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
"""
_STYLE = """<style>
:root{--ink:#1f2933;--muted:#5b6875;--ground:#fff;--panel:#f5f7f9;--rule:#dfe3e8;--line:#2563eb;
--bad:#c02626;--good:#0b7a53}
@media(prefers-color-scheme:dark){:root{--ink:#e4e7eb;--muted:#9aa5b1;--ground:#14181d;
--panel:#1d232a;--rule:#323b45;--line:#7ab0ff;--bad:#ff8080;--good:#54d3a2}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:60rem;padding:1rem;background:var(--ground);color:var(--ink);
font:16px/1.5 system-ui,sans-serif}
h1{font-size:1.6rem;line-height:1.25;margin:.5rem 0 0;overflow-wrap:anywhere}
h2{font-size:1.15rem;margin:2rem 0 .5rem}
p{margin:.25rem 0;overflow-wrap:anywhere}
.muted,small,th,.x,.y{color:var(--muted)}
.bad{color:var(--bad)}.good{color:var(--good)}
.bar{height:.5rem;margin:.75rem 0;border-radius:.25rem;background:var(--rule);overflow:hidden}
.bar div{height:100%;background:var(--line)}
dl{display:grid;grid-template-columns:repeat(auto-fit,minmax(9.5rem,1fr));gap:.5rem;margin:.5rem 0}
dl div{background:var(--panel);border-radius:.5rem;padding:.5rem .75rem;min-width:0}
dt{color:var(--muted);font-size:.8rem}
dd{margin:0;overflow-wrap:anywhere}
.plot{position:relative;height:15rem;margin:.75rem .75rem 2rem 3.5rem}
.plot svg{position:absolute;width:100%;height:100%;overflow:visible}
.plot path,.plot polyline{fill:none;vector-effect:non-scaling-stroke}
.grid{stroke:var(--rule)}
.mark{stroke:var(--bad);stroke-dasharray:4 4}
.points{stroke:var(--line);opacity:.3}
.curve{stroke:var(--line);stroke-width:2;stroke-linejoin:round}
.over{stroke:var(--good);stroke-width:2;stroke-linejoin:round}
.x,.y{position:absolute;font-size:.75rem;line-height:1;white-space:nowrap}
.y{right:100%;margin-right:.5rem;transform:translateY(-50%)}
.x{top:100%;margin-top:.5rem;transform:translateX(-50%)}
.wide{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:.9rem;font-variant-numeric:tabular-nums}
th{font-weight:400;text-align:left;white-space:nowrap}
th,td{padding:.3rem .75rem .3rem 0;border-bottom:1px solid var(--rule);vertical-align:top}
td{white-space:nowrap}
td.long{min-width:14rem;white-space:normal;overflow-wrap:anywhere}
code{font-size:.85em;overflow-wrap:anywhere}
</style>
"""

Fact = tuple[str, str]
"""A name and its value, both HTML."""


def page(report: Report) -> str:
    """Return the page."""
    title = _said(report.run.swarm_name)
    return "".join(
        [
            f"{_HEAD}<title>{title}: report</title>\n{_STYLE}</head>\n<body>\n<main>\n",
            *_run(report, title),
            *_loss(report),
            *_samples(report),
            *_speed(report),
            *_stages(report),
            *_members(report),
            *_leaderboard(report),
            *_contribution(report),
            *_faults(report),
            *_expelled(report),
            "</main>\n</body>\n</html>\n",
        ]
    )


def _said(text: object, limit: int = 600) -> str:
    """Return a text of whomever as HTML that only prints."""
    return escape(clean(text, limit))


def _public(text: str) -> str:
    """Return free words as HTML, without addresses and secrets."""
    return _said(Redactor().clean(text))


def _peer(peer: str) -> str:
    return f'<code title="{_said(peer)}">{escape(words.short(peer))}</code>'


def _named(peer: str, name: str) -> str:
    """Return a name with its id: two members may have one name."""
    return f"{_said(name)} {_peer(peer)}" if name else _peer(peer)


def _run(report: Report, title: str) -> Iterator[str]:
    run = report.run
    if report.source == "running":
        told = "told by the running volunteer"
    else:
        told = "read from the disk of a volunteer that does not run: members and stages may differ"
    share = min(max(run.step / run.steps, 0.0), 1.0)
    yield f"<h1>{title}</h1>\n"
    yield f'<p class="muted">swarm <code>{_said(run.swarm[:12])}</code>, '
    yield f"report of {words.date(report.made)}, {told}</p>\n"
    if run.purpose:
        yield f"<p>{_public(run.purpose)}</p>\n"
    yield f"<p>{_public(report.state)}</p>\n"
    yield f'<div class="bar"><div style="width:{100 * share:.1f}%"></div></div>\n'
    yield _list(
        [
            ("steps", f"{run.step:,} of {run.steps:,} ({share:.0%})"),
            ("tokens seen", f"{words.count(run.tokens)} of {words.count(run.tokens_of)}"),
            ("passes over the data", "not known" if run.epochs is None else f"{run.epochs:.3g}"),
            ("time left", _left(report)),
            ("founded", words.date(run.created)),
            ("loss", _loss_now(report)),
        ]
    )
    yield f'<p><span class="muted">model:</span> {_said(run.architecture)}, '
    yield f"{words.count(run.parameters)} parameters, {plural(run.layers, 'layer')} of width "
    yield f"{run.width}, {run.vocab:,} tokens, sequences of {run.context:,}</p>\n"
    yield f'<p><span class="muted">data:</span> {_said(run.data)}, '
    yield f"{words.size(run.data_bytes)}</p>\n"
    if run.parts:
        rows = [[_said(one.name), f"{one.share:.1%}", f"{one.epochs:.3g}"] for one in run.parts]
        yield _table(["part of the data", "share", "passes"], rows)


def _left(report: Report) -> str:
    if report.run.step >= report.run.steps:
        return "none: the run is complete"
    if report.time_left_s is None:
        return "not known"
    return f"about {words.duration(report.time_left_s)}"


def _loss_now(report: Report) -> str:
    return f"{report.curve[-1].loss:.4f} nats per token" if report.curve else "none yet"


def _loss(report: Report) -> Iterator[str]:
    yield "<h2>Loss</h2>\n"
    points = [(float(point.step), point.loss) for point in report.curve]
    drawn = chart(
        points,
        "training loss by step",
        [one.step for one in report.faults if not one.in_order],
        [(float(point.version), point.loss) for point in _held_out_curve(report)],
    )
    yield from _held_out(report)
    if not drawn:
        yield '<p class="muted">The curve begins with the second step seen here.</p>\n'
        return
    low = min(points, key=lambda point: point[1])
    yield f'<p class="muted">training loss, nats per token, by step; lowest {low[1]:.4f} at step '
    yield f"{low[0]:,.0f}; dashed: a fault"
    if _held_out_curve(report):
        yield '; <span class="good">green: held-out loss</span>'
    yield f"</p>\n{drawn}\n"


def _held_out_curve(report: Report) -> list[HeldOutPoint]:
    return [] if report.held_out is None else report.held_out.curve


def _held_out(report: Report) -> Iterator[str]:
    """Say what the newest versions lose on text that nobody trains on."""
    known = report.held_out
    if known is None or not known.curve:
        return
    newest, best = known.curve[-1], min(known.curve, key=lambda point: point.loss)
    yield f"<p>held-out loss {newest.loss:.4f} nats per token, "
    yield f"{newest.loss * known.bits_per_nat:.4f} bits per byte, after step {newest.version:,}, "
    yield f"on {known.tokens:,} tokens that nobody trains on; lowest {best.loss:.4f} after step "
    yield f"{best.version:,}; computed by the swarm every {plural(known.every, 'step')}</p>\n"


def _samples(report: Report) -> Iterator[str]:
    if not report.samples:
        return
    yield "<h2>What it writes</h2>\n"
    yield '<p class="muted">to the founder\'s prompts, the likeliest token each time, on this '
    yield "volunteer's machine</p>\n"
    rows = [
        [f"{one.version:,}", f"<code>{_public(one.prompt)}</code>{_public(one.text)}"]
        for one in report.samples
    ]
    yield _table(["after step", ""], rows, long=1)


def _speed(report: Report) -> Iterator[str]:
    yield "<h2>Throughput</h2>\n"
    if report.tokens_per_s is not None and report.own_tokens_per_s is not None:
        yield f"<p>{words.count(report.tokens_per_s)} tokens/s in the swarm, "
        yield f"{words.count(report.own_tokens_per_s)} of it by this volunteer</p>\n"
    drawn = chart(
        [(float(one.step), one.tokens_per_s) for one in report.curve if one.tokens_per_s > 0],
        "tokens per second by step",
    )
    if drawn:
        yield f'<p class="muted">tokens per second of the swarm, by step</p>\n{drawn}\n'


def _stages(report: Report) -> Iterator[str]:
    yield "<h2>Stages</h2>\n"
    rows = [
        [
            str(one.stage),
            str(one.layers),
            words.NONE if one.version is None else f"{one.version:,}",
            words.NONE if one.serving is None else str(one.serving),
            _said(one.words),
        ]
        for one in report.stages
    ]
    version = "version" if report.source == "running" else "version on this disk"
    yield _table(["stage", "layers", version, "volunteers", ""], rows, long=4)


def _members(report: Report) -> Iterator[str]:
    known = report.members
    yield f"<h2>{plural(len(known), 'member')}</h2>\n"
    if report.source == "disk":
        yield '<p class="muted">members that this volunteer has met</p>\n'
    rows = [_member(one) for one in known]
    if rows:
        yield _table(["volunteer", "state", "stages", "microbatches/s", "trust"], rows, long=4)
    if report.audits is not None and report.audits.drawn:
        drawn = plural(report.audits.drawn, "contribution")
        yield f"<p>audited by this volunteer: {drawn}, {audit_results(report.audits)}</p>\n"


def _member(one: MemberFacts) -> list[str]:
    trust = ": ".join(filter(None, (_said(one.standing), _public(one.fault))))
    return [
        _named(one.peer, one.name),
        _said(one.state),
        ", ".join(map(str, one.stages)) or words.NONE,
        words.rate(one.microbatches_per_s) if one.microbatches_per_s else words.NONE,
        f'<span class="bad">{trust}</span>' if one.fault else trust or words.NONE,
    ]


def _leaderboard(report: Report) -> Iterator[str]:
    yield "<h2>Who contributed</h2>\n"
    if not report.contributors:
        yield "<p class=\"muted\">Nobody's work is vouched for yet: two others of a volunteer's "
        yield "stage have to have counted it.</p>\n"
        return
    yield '<p class="muted">microbatches of committed steps, in every stage, as at least two other '
    yield "volunteers of the stage counted them</p>\n"
    head = ["volunteer", "microbatches", "tokens", "share", "vouched for by"]
    yield _table(head, [_contributor(one) for one in report.contributors])


def _contributor(one: ContributorView) -> list[str]:
    who = _named(one.peer, one.name)
    if not one.vouchers:
        return [who, f"{one.unvouched:,}", words.NONE, words.NONE, "one other alone"]
    by = plural(one.vouchers, "other")
    return [who, f"{one.microbatches:,}", words.count(one.tokens), f"{one.share:.1%}", by]


def _contribution(report: Report) -> Iterator[str]:
    yield "<h2>This volunteer</h2>\n"
    credit = report.credit
    if credit is None:
        yield '<p class="muted">It has contributed nothing yet.</p>\n'
        return
    yield _list(
        [
            ("microbatches in steps", words.count(credit.microbatches)),
            ("tokens, per stage", words.count(credit.tokens)),
            ("sent to others", words.size(credit.sent_bytes)),
            ("since", words.date(credit.since) if credit.since else "not known"),
        ]
    )


def _faults(report: Report) -> Iterator[str]:
    yield "<h2>Faults and repairs</h2>\n"
    faults = [one for one in report.faults if not one.in_order]
    open_now = sum(one.repaired_after_s is None for one in faults)
    if not faults:
        yield "<p>This volunteer has seen no fault.</p>\n"
    elif open_now:
        yield f'<p>{plural(len(faults), "fault")}, <span class="bad">{open_now} not repaired '
        yield "as far as this volunteer has seen</span></p>\n"
    else:
        count = plural(len(faults), "fault")
        yield f'<p>{count}, <span class="good">all repaired</span></p>\n'
    if report.counters is not None:
        counted = report.counters
        yield '<p class="muted">Since it was started: '
        yield f"{counted.rerouted_microbatches:,} microbatches sent to another volunteer, "
        yield f"{counted.lost_microbatches:,} computed again, "
        yield f"{counted.doubled_microbatches:,} counted twice, "
        yield f"{counted.rounds_restarted:,} rounds restarted.</p>\n"
    if report.faults:
        rows = [_fault(one) for one in report.faults]
        yield _table(["when", "step", "what happened", "repaired after"], rows, long=2)


def _fault(one: FaultFacts) -> list[str]:
    told = [_public(one.words)]
    if one.stages:
        noun = "stage" if len(one.stages) == 1 else "stages"
        told.append(f"it served {noun} {words.listed([str(stage) for stage in one.stages])}")
    if one.steps_lost:
        told.append(f"{plural(one.steps_lost, 'step')} done again")
    told += [_public(note) for note in one.notes]
    after = '<span class="bad">not yet</span>'
    if one.repaired_after_s is not None:
        after = words.duration(one.repaired_after_s)
    return [
        words.date(one.time),
        f"{one.step:,}",
        "<br>".join(told),
        words.NONE if one.in_order else after,
    ]


def _expelled(report: Report) -> Iterator[str]:
    yield "<h2>Expelled members</h2>\n"
    if not report.expelled:
        yield "<p>None that this volunteer knows of.</p>\n"
        return
    by = {"contradiction": "its own signatures", "charges": "its stage", "inviter": "its inviter"}
    rows = [[_peer(out.peer), _public(out.reason), by[out.by]] for out in report.expelled]
    yield _table(["volunteer", "why", "shown by"], rows, long=1)


def _list(facts: Iterable[Fact]) -> str:
    shown = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>\n" for name, value in facts)
    return f"<dl>\n{shown}</dl>\n"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], long: int | None = None) -> str:
    """Return a table of HTML cells; ``long``: the column of sentences."""
    top = "".join(f"<th>{name}</th>" for name in head)
    body = "".join(
        "<tr>"
        + "".join(
            f'<td class="long">{cell}</td>' if at == long else f"<td>{cell}</td>"
            for at, cell in enumerate(row)
        )
        + "</tr>\n"
        for row in rows[:MOST_ROWS]
    )
    more = f"<p>and {len(rows) - MOST_ROWS:,} more</p>\n" if len(rows) > MOST_ROWS else ""
    return f'<div class="wide"><table>\n<tr>{top}</tr>\n{body}</table></div>\n{more}'
