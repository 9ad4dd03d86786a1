"""The loss plot: well-formed, labelled, and honest about odd numbers."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

from hypothesis import given
from hypothesis import strategies as st

from client.lab.svg import Curve, Event, Labels, curves_chart, ticks

SVG = "{http://www.w3.org/2000/svg}"


def test_axes_title_and_events_are_labelled_and_escaped() -> None:
    points = [(0, 5.5), (1, 4.0), (2, 3.0)]
    labels = Labels("a < b", "sub", "step", "loss")
    svg = curves_chart([Curve(points)], labels, events=[Event(1, "killed & gone")])
    texts = [node.text for node in ElementTree.fromstring(svg).iter(f"{SVG}text")]
    assert {"a < b", "sub", "step", "loss", "killed & gone", "0", "2"} <= set(texts)


def test_infinite_and_missing_losses_are_left_out() -> None:
    points = [(0, 1.0), (1, float("nan")), (2, float("inf")), (3, 2.0)]
    svg = curves_chart([Curve(points)], Labels("t", "s", "x", "y"))
    line = ElementTree.fromstring(svg).find(f".//{SVG}polyline")
    assert len(line.attrib["points"].split()) == 2
    assert "nan" not in svg


@given(st.lists(st.floats(-1e12, 1e12), min_size=1, max_size=5))
def test_ticks_enclose_the_values(values: list[float]) -> None:
    found = ticks(values)
    assert 2 <= len(found) <= 12
    slack = 1e-6 * (found[-1] - found[0])
    assert found[0] <= min(values) + slack
    assert max(values) <= found[-1] + slack
