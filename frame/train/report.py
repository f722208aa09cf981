"""A page about a training run: curves, facts and the table of epochs, in one HTML file."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from frame.core.files import atomic_write
from frame.train.callbacks import Callback, Pathlike, checked_path
from frame.train.records import EpochRecord, History

if TYPE_CHECKING:
    from frame.train.running import TrainingRun

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 520, 230, 58, 30, 12
_COLOURS = ("#2563eb", "#dc2626", "#059669", "#9333ea", "#d97706", "#0891b2")
_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1120px; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.4rem } h2 { font-size: 1.05rem; margin: 1rem 0 .3rem }
.curves { display: flex; flex-wrap: wrap; gap: 1.5rem } figure { margin: 0 }
svg text { font: 11px system-ui, sans-serif; fill: currentColor }
svg .grid { stroke: currentColor; opacity: .15 } .facts { border-spacing: 1rem .1rem }
.facts th { text-align: left; vertical-align: top; white-space: nowrap }
code { overflow-wrap: anywhere }
"""


class HtmlReport(Callback):
    """Writes the page after each epoch, so that it shows the run as far as it is.

    Raises:
        NotFoundError: the folder of the file does not exist.
    """

    def __init__(self, path: Pathlike) -> None:
        self.path = checked_path(path)

    def on_epoch(self, run: TrainingRun, record: EpochRecord) -> None:
        """Write the page of the epochs so far."""
        self._page(run, History(tuple(run.records)))

    def on_end(self, run: TrainingRun, history: History) -> None:
        """Write the page of the whole run."""
        self._page(run, history)

    def _page(self, run: TrainingRun, history: History) -> None:
        text = page(run.model.name, history, facts(run, history))
        atomic_write(self.path, lambda file: file.write(text.encode()))


def facts(run: TrainingRun, history: History) -> dict[str, str]:
    """Return what was trained and how, as text."""
    task, speed = run.task, history.steps / max(history.seconds, 1e-9)
    parameters = sum(array.size for array in run.model.params.values())
    best = "" if history.best is None else f"{history.best + 1}"
    return {
        "model": f"{run.model.name}, {parameters:,} parameters",
        "data": task.checked_feed().text(),
        "optimizer": task.recipe().text(),
        "scheduler": task.checked_scheduler().text(),
        "seed": str(task.seed_value),
        "epochs": f"{len(history.epochs)} of {task.epochs}",
        "steps": f"{history.steps:,} in {history.seconds:.1f} s ({speed:,.0f} a second)",
        "best epoch": best or "none yet",
        "stopped": history.stopped or "no",
    }


def page(title: str, history: History, about: Mapping[str, str]) -> str:
    """Return the page as HTML without anything from elsewhere."""
    rows = "".join(
        f"<tr><th>{html.escape(name)}</th><td><code>{html.escape(value)}</code></td></tr>"
        for name, value in about.items()
    )
    drawn = "".join(figure(name, lines) for name, lines in curves(history).items())
    name = html.escape(title)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{name}</title>'
        f"<style>{_STYLE}</style></head><body><h1>Training of {name}</h1>"
        f'<table class="facts">{rows}</table><div class="curves">{drawn}</div>'
        f"<h2>Epochs</h2>{history._repr_html_()}</body></html>\n"
    )


Points = Sequence[tuple[int, float]]


def curves(history: History) -> dict[str, dict[str, Points]]:
    """Return the lines of each figure: a value in training and validation, and the rate."""
    found: dict[str, dict[str, list[tuple[int, float]]]] = {}
    for record in history.epochs:
        for name, value in record.values().items():
            about = name.removeprefix("val_").removeprefix("average_")
            found.setdefault(about, {}).setdefault(name, []).append((record.epoch + 1, value))
        rates = found.setdefault("learning rate", {}).setdefault("learning rate", [])
        rates.append((record.epoch + 1, record.learning_rate))
    return {name: dict(lines) for name, lines in found.items()}


def figure(title: str, lines: Mapping[str, Points]) -> str:
    """Return lines over the epochs as a figure."""
    points = [p for line in lines.values() for p in line if math.isfinite(p[1])]
    if not points:
        return ""
    first, last = min(x for x, _ in points), max(x for x, _ in points)
    marked = _ticks([y for _, y in points])
    low, high = marked[0], marked[-1]

    def place(x: float, y: float) -> tuple[float, float]:
        across = (x - first) / max(last - first, 1)
        up = (y - low) / (high - low)
        return _LEFT + across * (_WIDTH - _LEFT - 12), _TOP + (1 - up) * (_HEIGHT - _BOTTOM - _TOP)

    marks = "".join(_mark(value, place) for value in marked)
    ends = "".join(
        f'<text x="{place(x, low)[0]:.1f}" y="{_HEIGHT - 10}" text-anchor="middle">{x}</text>'
        for x in sorted({first, (first + last) // 2, last})
    )
    drawn = "".join(
        _line(colour, [place(*p) for p in line if math.isfinite(p[1])])
        for line, colour in zip(lines.values(), _COLOURS, strict=False)
    )
    key = " ".join(
        f'<span style="color:{colour}">&#9644;</span> {html.escape(name)}'
        for name, colour in zip(lines, _COLOURS, strict=False)
    )
    return (
        f"<figure><h2>{html.escape(title)}</h2>"
        f'<svg width="{_WIDTH}" height="{_HEIGHT}" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="{html.escape(title)}">{marks}{ends}{drawn}</svg>'
        f"<figcaption>{key}</figcaption></figure>"
    )


def _ticks(values: Sequence[float]) -> list[float]:
    """Return round numbers from below the least value to above the largest, about five."""
    low, high = min(values), max(values)
    rough = max(high / 4 - low / 4 or abs(high) / 4 or 0.25, 1e-300)
    unit = 10.0 ** math.floor(math.log10(rough))
    step = unit * next(each for each in (1, 2, 2.5, 5, 10) if each * unit >= rough * (1 - 1e-9))
    first, last = math.floor(low / step), math.ceil(high / step)
    return [k * step for k in range(first, max(last, first + 1) + 1)]


def _mark(value: float, place: Callable[[float, float], tuple[float, float]]) -> str:
    _, y = place(1, value)
    return (
        f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - 12}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:.3g}</text>'
    )


def _line(colour: str, points: Sequence[tuple[float, float]]) -> str:
    if len(points) == 1:
        return f'<circle cx="{points[0][0]:.1f}" cy="{points[0][1]:.1f}" r="3" fill="{colour}"/>'
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'
