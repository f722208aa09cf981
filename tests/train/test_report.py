"""The page about a run."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import pytest

from frame.core.errors import NotFoundError
from frame.train import HtmlReport, report
from tests.train.tasks import task


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.open: list[str] = []
        self.points: list[int] = []

    def handle_starttag(self, tag, attributes) -> None:
        """Note a tag."""
        self.found.append(tag)
        if tag == "polyline":
            self.points.append(len(dict(attributes)["points"].split()))
        if tag not in ("meta", "line", "polyline", "circle"):
            self.open.append(tag)

    def handle_endtag(self, tag) -> None:
        """Close a tag."""
        if self.open and self.open[-1] == tag:
            self.open.pop()


def test_the_page_has_a_curve_a_value(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    task(epochs=4).validate_every(2).metrics("top1").callback(HtmlReport(path)).run()
    text, tags = path.read_text(), _Tags()
    tags.feed(text)
    assert tags.open == [] and tags.found.count("svg") == 3  # loss, top1, learning rate
    assert sorted(tags.points) == [2, 2, 4, 4, 4]
    assert "http" not in text and "<script" not in text
    assert "adamw" in text.lower() and "4 of 4" in text


def test_a_report_needs_its_folder(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="its folder does not exist"):
        HtmlReport(tmp_path / "no" / "report.html")


@pytest.mark.parametrize(
    ("values", "ticks"),
    [
        ([0.067, 2.19], [0.0, 1.0, 2.0, 3.0]),
        ([0.305, 0.99], [0.2, 0.4, 0.6, 0.8, 1.0]),
        ([1e-6, 0.1], [0.0, 0.025, 0.05, 0.075, 0.1]),
        ([3.0, 3.0], [3.0, 4.0]),
        ([0.0], [0.0, 0.25]),
        ([-1e-9, 2e-9], [-1e-9, 0.0, 1e-9, 2e-9]),
    ],
)
def test_axes_are_marked_at_round_numbers(values: list[float], ticks: list[float]) -> None:
    assert report._ticks(values) == pytest.approx(ticks, abs=1e-15)
