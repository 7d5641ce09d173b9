"""Curves of training as SVG."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edbc.tools.report.curves import Line, Panel, epochs_picture, picture, ticks

SVG = "{http://www.w3.org/2000/svg}"


@settings(derandomize=True, max_examples=200)
@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6))
def test_ticks_are_round_and_cover(low: float, width: float) -> None:
    """Three to eight ticks, evenly spaced, from at most the least to at least the largest figure."""
    high = low + width
    found = ticks(low, high)
    slack = 1e-9 * max(abs(low), abs(high), 1)

    assert found[0] <= low + slack
    assert found[-1] >= high - slack
    assert 2 <= len(found) <= 8
    steps = [b - a for a, b in zip(found, found[1:], strict=False)]
    assert all(math.isclose(step, steps[0], rel_tol=1e-3, abs_tol=slack) for step in steps)


def test_a_panel_per_figure_and_a_line_per_part() -> None:
    """Loss and accuracy of train and dev: two panels of two lines, with names, and points within their panel."""
    train, dev = {"loss": 2.0, "accuracy": 0.5}, {"loss": 3.0, "accuracy": 0.25}
    root = ElementTree.fromstring(epochs_picture([(train, dev), ({"loss": 1.0, "accuracy": 1.0}, dev)]))
    panels = root.findall(f"{SVG}g")
    texts = [[text.text for text in panel.findall(f"{SVG}text")] for panel in panels]

    assert [names[:3] for names in texts] == [["loss", "train", "dev"], ["accuracy", "train", "dev"]]
    for panel in panels:
        lines = panel.findall(f"{SVG}polyline")
        assert len(lines) == 2
        for line in lines:
            for point in line.attrib["points"].split():
                x, y = map(float, point.split(","))
                assert 0 <= x <= 340
                assert 0 <= y <= 220


def test_larger_figures_stand_higher_and_later_ones_further_right() -> None:
    """The axes point up and to the right."""
    root = ElementTree.fromstring(picture([Panel("p", [Line("a", [(1, 5.0), (2, 7.0)], "red")])]))
    polyline = root.find(f".//{SVG}polyline")
    assert polyline is not None
    (x1, y1), (x2, y2) = (map(float, point.split(",")) for point in polyline.attrib["points"].split())

    assert x1 < x2
    assert y1 > y2


@pytest.mark.parametrize("epochs", [[({"loss": 1.0}, None)], [({"loss": 1.0}, {"loss": 1.0})]])
def test_one_epoch_is_a_picture_too(epochs: list) -> None:
    """A single point, without a range to scale to."""
    assert ElementTree.fromstring(epochs_picture(epochs)).findall(f".//{SVG}circle")


def test_names_are_escaped() -> None:
    """A metric's name is the model file's text, not markup."""
    assert "<b>" not in epochs_picture([({"loss": 1.0, "<b>": 2.0}, None)])
