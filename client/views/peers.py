"""The Peers tab: the known peers, their distance, their stages, and how far each is trusted."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from client.control.snapshot import PeerView, ReplicaView, Snapshot, TrustView
from client.quantities import plural
from client.views import status, words
from client.views.dashboard import event_line
from client.views.plot import bar
from client.views.record import Record
from client.views.span import Box, Column, Line, Row, Span, Tone, cells_of, cut, head_of, line
from client.views.text import clean, width

LABELS = 11
MOST_LINES = 3
"""Of one reason."""
_ORDER = {"you": 0, "connected": 1, "known": 2, "gone": 3}
_TONES: dict[str, tuple[str, Tone]] = {
    "you": ("◆", "key"),
    "connected": ("●", "good"),
    "known": ("○", "muted"),
    "gone": ("○", "muted"),
}


@dataclass(frozen=True, slots=True)
class PeerRow:
    """One known volunteer."""

    view: PeerView
    """Its ``state`` is also ``you``, or ``gone`` of one that was expelled."""
    held: dict[int, ReplicaView] = field(default_factory=dict)
    """Its part in each stage that it holds."""
    trust: TrustView | None = None
    name: str = ""
    """As it calls itself; empty: it has no name."""
    share: float | None = None
    """Of the work in the steps that were closed here; None: nothing of it is known."""

    @property
    def doubt(self) -> str:
        """How it stands with us if it is not proven; empty: nothing speaks against it."""
        standing = "proven" if self.trust is None else self.trust.standing
        return "" if standing in ("proven", "unproven") else standing

    @property
    def rate(self) -> float:
        """Microbatches per second over all its stages."""
        return sum(replica.rate for replica in self.held.values())

    @property
    def words(self) -> str:
        """The text that a filter searches."""
        stages = " ".join(f"stage {stage} {one.state}" for stage, one in self.held.items())
        standing = "" if self.trust is None else self.trust.standing
        return f"{self.view.peer} {self.name} {self.view.state} {stages} {standing}".lower()


def peer_rows(now: Snapshot) -> list[PeerRow]:
    """Return ourselves and all known peers, also those known only as holders of a stage, and those
    that were expelled."""
    mine = PeerView(peer=now.peer, state="you")
    rows = {peer.peer: PeerRow(peer) for peer in (mine, *now.peers)}
    for stage in now.stages:
        for replica in stage.replicas:
            row = rows.setdefault(replica.peer, PeerRow(PeerView(peer=replica.peer, state="known")))
            row.held[stage.stage] = replica
    for out in now.expelled:
        rows.setdefault(out.peer, PeerRow(PeerView(peer=out.peer, state="gone")))
    for one in now.trust:
        if (known := rows.get(one.peer)) is not None:
            rows[one.peer] = replace(known, trust=one)
    shares = {one.peer: one.share for one in now.contributors}
    return [
        replace(row, name=clean(now.names.get(row.view.peer, "")), share=shares.get(row.view.peer))
        for row in rows.values()
    ]


def chosen(rows: list[PeerRow], text: str) -> list[PeerRow]:
    """Return the rows that contain every word of ``text``, by state."""
    wanted = text.lower().split()
    found = [row for row in rows if all(part in row.words for part in wanted)]
    return sorted(found, key=lambda row: (_ORDER.get(row.view.state, 9), row.view.peer))


def peer_table(
    record: Record,
    box: Box,
    text: str,
    limit: int | None = None,
    *,
    whole_ids: bool = False,
) -> tuple[Line, list[Row]]:
    """Return head and the rows that contain every word of ``text``, the first ``limit`` of them;
    ``whole_ids``: for commands that take them."""
    now = record.snapshot
    if now is None:
        return (), [Row("none", (line(("nobody is known yet", "muted")),))]
    rows = chosen(peer_rows(now), text)[:limit]
    wide, compact = box.width >= 100, box.width < 66
    audited = wide and now.audits is not None
    called = max((width(row.name) for row in rows), default=0)
    name = min(7 + called, 31 if wide else 20) if called else 9
    if whole_ids:
        name = called + 1 + max((width(row.view.peer) for row in rows), default=0)
    narrow = box.width < 90 and called > 0
    columns = [
        Column("", 1),
        Column("volunteer", name),
        Column("state", 10),
        Column("round trip", 10, right=True),
        Column("microbatches/s", 0 if compact else 14, right=True),
        Column("", 14 if wide else 0),
        Column("work", 6 if now.contributors and not compact else 0, right=True),
        Column("version", 0 if compact or narrow else 8, right=True),
        Column("audits agree", 12 if audited else 0, right=True),
    ]
    taken = sum(column.width + 1 for column in columns if column.width)
    columns.append(Column("holds", max(8, box.width - taken)))
    top = max((row.rate for row in rows), default=0.0)
    return head_of(columns), [
        Row(row.view.peer, (cells_of(columns, _cells(row, top, whole_id=whole_ids)),))
        for row in rows
    ]


def remarks(now: Snapshot) -> Iterator[status.Fact]:
    """Yield how members are linked if it is not directly, and why some are not trusted."""
    for row in peer_rows(now):
        told = [_link(row)]
        if row.trust is not None:
            told += ["" if row.trust.standing == "proven" else row.trust.words, row.trust.fault]
        yield from ((words.short(row.view.peer), line(one)) for one in told if one)


def _link(row: PeerRow) -> str:
    if row.view.relay:
        return f"relayed through {words.short(row.view.relay)}"
    return "direct through both routers" if row.view.punched else ""


def peer_title(record: Record, text: str) -> str:
    """Return the title of the tab's frame."""
    now = record.snapshot
    if now is None:
        return "Peers"
    rows = peer_rows(now)
    found = len(chosen(rows, text))
    filtered = f", {found} shown" if found != len(rows) else ""
    return f"{plural(len(rows), 'volunteer')}{filtered}"


def details(record: Record, peer: str, box: Box) -> list[Line]:
    """Return all known facts of a peer."""
    now = record.snapshot
    row = next((row for row in peer_rows(now) if row.view.peer == peer), None) if now else None
    if now is None or row is None:
        return [line(("it is gone", "muted"))]
    mark, tone = _mark(row)
    trip = "not measured" if row.view.rtt_ms is None else f"{row.view.rtt_ms:.1f} ms"
    trip += f", {_link(row)}" if _link(row) else ""
    facts: list[status.Fact] = [
        ("peer id", line(row.view.peer)),
        *([("name", line(row.name))] if row.name else []),
        ("state", line((f"{mark} {row.view.state}", tone))),
        ("round trip", line(trip)),
        *_held(row),
        *of_member(now, row.view.peer, row.trust),
    ]
    lines = status.lines_of(facts, Box(box.width), LABELS, most=MOST_LINES)
    lines += [(), line(("its events", "muted"))]
    told = [event for event in record.events if peer in event.members and event.level != "debug"]
    shown = told[-max(3, box.height - len(lines)) :]
    lines += [event_line(event, record.names) for event in shown]
    if not told:
        lines.append(line(("nothing", "muted")))
    return [cut(found, box.width) for found in lines]


def _held(row: PeerRow) -> Iterator[status.Fact]:
    if not row.held:
        yield "holds", line("no stage")
    for stage, replica in sorted(row.held.items()):
        yield (
            "holds",
            line(
                (f"stage {stage} ", "strong"),
                replica.state,
                (f", version {replica.version}, ", "muted"),
                f"{words.rate(replica.rate)}",
                (" microbatches/s", "muted"),
            ),
        )


def _mark(row: PeerRow) -> tuple[str, Tone]:
    """Return the mark and the colour of its state; whoever is not trusted looks so."""
    if row.doubt:
        return "✗" if row.doubt in ("expelled", "aside") else "◐", tone_of(row.doubt)
    return _TONES.get(row.view.state, ("○", "muted"))


def _audits(row: PeerRow) -> Span:
    found = None if row.trust is None else row.trust.audits
    if found is None or not found.drawn:
        return Span(words.NONE, "muted")
    return Span(f"{found.agree} of {found.drawn}", "bad" if found.disagree else "good")


def _cells(row: PeerRow, top: float, *, whole_id: bool) -> list[Span]:
    mark, tone = _mark(row)
    holds = ", ".join(
        str(stage) if one.state == "serving" else f"{stage} ({clean(one.state, 12)})"
        for stage, one in sorted(row.held.items())
    )
    version = max((one.version for one in row.held.values()), default=None)
    called = clean(row.view.peer) if whole_id else words.short(row.view.peer)
    return [
        Span(mark, tone),
        Span(
            f"{called} {row.name}".rstrip(),
            "key" if row.view.state == "you" else "strong",
        ),
        Span(clean(row.doubt or row.view.state, 10), tone if row.view.state != "you" else "key"),
        Span(words.NONE if row.view.rtt_ms is None else f"{row.view.rtt_ms:.1f} ms"),
        Span(words.rate(row.rate) if row.rate else words.NONE),
        Span(bar(row.rate / top if top else 0.0, 14), "accent"),
        Span(words.NONE if row.share is None else words.share(row.share)),
        Span(words.NONE if version is None else words.count(version), "muted"),
        _audits(row),
        Span(f"stages {holds}" if len(row.held) > 1 else f"stage {holds}" if holds else "no stage",
             "plain" if holds else "muted"),
    ]  # fmt: skip


# --- trust ------------------------------------------------------------------------------------


def tone_of(standing: str) -> Tone:
    """Return the colour of a standing."""
    return status.STANDINGS.get(standing, ("", "muted"))[1]


def trust_summary(record: Record, box: Box) -> list[Line]:
    """Return our audits, how many members are trusted, and who was expelled last; nothing in a
    run in which there is nothing to say of it."""
    facts = status.trust(record.snapshot) if record.snapshot else ()
    return status.lines_of(facts, box, LABELS, most=MOST_LINES)


def of_member(now: Snapshot, peer: str, known: TrustView | None) -> Iterator[status.Fact]:
    """Yield why a member is trusted, what its audits came to, and who has invited it."""
    if peer == now.peer:
        return
    if known is None:
        yield "trust", line(("none of its work is known here yet", "muted"))
        return
    told = f"{status.STANDINGS[known.standing][0]}: {known.words}"
    yield "trust", line((told, tone_of(known.standing)))
    if known.audits.drawn:
        found = f"{known.audits.drawn} of its contributions: {status.audit_results(known.audits)}"
        yield "our audits", line((found, "bad" if known.audits.disagree else "good"))
    if known.fault:
        yield "", line(known.fault)
    if known.invited_by:
        yield "invited by", line(_invited(known.invited_by))
    for out in now.expelled:
        if out.peer == peer:
            yield "evidence", line((status.where_to_see(out), "muted"))


def _invited(above: list[str]) -> str:
    """Say who answers for a member: its inviter, and the branch of the founder's tree."""
    inviter = words.short(above[-1])
    if len(above) == 1:
        return f"{inviter}, the founder"
    branch = f", in the branch of {words.short(above[1])}" if len(above) > 2 else ""
    return f"{inviter}, {len(above)} invitations from the founder{branch}"
