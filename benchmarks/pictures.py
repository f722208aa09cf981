"""Draw the pictures of the README from real runs on this machine.

    python benchmarks/pictures.py [--out docs/images]

`training.svg` shows the loss and the accuracy of the networks of `frame demo` by epoch, on the
rows that they learn from and on the test rows; `profile.svg` the time of each kernel of a training
step of the convolutional one; `graph.svg` a small graph. The pictures follow the reader's light or
dark mode.
"""

from __future__ import annotations

import argparse
import html
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a script

import numpy as np

import frame
from frame import ops
from frame.cli.demo import RECIPES, WARMUP_STEPS, Recipe, compiled
from frame.data import DataLoader, TensorDataset, digits
from frame.ir.graph import Value
from frame.runtime.model import TRAIN_STEP, CompiledModel
from frame.runtime.profiler import Profile, time_text
from frame.train import History, cosine, fit

_STYLE = (
    "text{font:12px sans-serif;fill:#24292f}.axis{stroke:#8c959f;stroke-width:1}"
    ".grid{stroke:#8c959f;stroke-width:1;opacity:.25}"
    "polyline{fill:none}.a{stroke:#0969da;stroke-width:1.8}.b{stroke:#bc4c00;stroke-width:1.8}"
    ".t{stroke-dasharray:4 3}rect.k{fill:#0969da}"
    "@media(prefers-color-scheme:dark){text{fill:#d1d7e0}.a{stroke:#58a6ff}.b{stroke:#f0883e}"
    "rect.k{fill:#58a6ff}}"
)
PROFILES = 51
"""How many steps are profiled; the one of median time is drawn."""

_CLASSES = ("a", "b")
Point = tuple[float, float]


def svg(width: int, height: int, body: str) -> str:
    """Return a picture of its own."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}"><style>{_STYLE}</style>{body}</svg>\n'
    )


def text(x: float, y: float, words: str, anchor: str = "start") -> str:
    """Return a text at a place."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{html.escape(words)}</text>'


def line(points: Sequence[Point], kind: str) -> str:
    """Return a line through points."""
    places = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline class="{kind}" points="{places}"/>'


def trained(recipe: Recipe) -> tuple[CompiledModel, History]:
    """Train a network of the demo, with the test rows looked at after each epoch."""
    data, model = digits(), compiled(recipe, seed=0)
    rows = TensorDataset([data.train_images, data.train_labels])
    history = fit(
        model,
        DataLoader(rows, recipe.batch, shuffle=True, seed=0, drop_last=True),
        epochs=recipe.epochs,
        learning_rate=cosine(recipe.learning_rate, WARMUP_STEPS),
        metrics=("accuracy",),
        validation=[(data.test_images, data.test_labels)],
        progress=False,
    )
    return model, history


@dataclass(frozen=True)
class Panel:
    """A chart of one value by epoch: full lines for the training rows, dashed for the test rows.

    Attributes:
        title: what stands above.
        column: the value of the histories.
        marks: the numbers of the value axis, from the bottom to the top; what is beyond them is
            drawn at the edge.
        form: how a number is written.
        left: where it begins, in pixels.
    """

    title: str
    column: str
    marks: tuple[float, ...]
    form: str
    left: int

    def draw(self, histories: Sequence[tuple[str, History]]) -> str:
        """Return the chart."""
        low, high = self.marks[0], self.marks[-1]
        last = max(len(history.epochs) for _, history in histories)
        x0, y0, width, height = self.left + 52, 210, 292, 170

        def across(epoch: float) -> float:
            return x0 + width * (epoch - 1) / (last - 1)

        def up(value: float) -> float:
            return y0 - height * (min(max(value, low), high) - low) / (high - low)

        body = text(x0, 26, self.title)
        for mark in self.marks:
            body += line(
                [(x0, up(mark)), (x0 + width, up(mark))], "axis" if mark == low else "grid"
            )
            body += text(x0 - 8, up(mark) + 4, self.form.format(mark), "end")
        for epoch in (1, *range(20, last + 1, 20)):
            body += line([(across(epoch), y0), (across(epoch), y0 + 5)], "axis")
            body += text(across(epoch), y0 + 19, str(epoch), "middle")
        body += text(x0 + width / 2, y0 + 36, "epoch", "middle")
        for kind, (_, history) in zip(_CLASSES, histories, strict=True):
            for name, dashes in ((self.column, ""), (f"val_{self.column}", " t")):
                values = enumerate(history.column(name), 1)
                body += line([(across(epoch), up(value)) for epoch, value in values], kind + dashes)
        return body


PANELS = (
    Panel("loss", "loss", (0.4, 0.8, 1.2, 1.6, 2.0), "{:.1f}", 0),
    Panel("accuracy", "accuracy", (0.8, 0.85, 0.9, 0.95, 1.0), "{:.0%}", 370),
)


def training_picture(histories: Sequence[tuple[str, History]]) -> str:
    """Return loss and accuracy by epoch, side by side."""
    body = "".join(panel.draw(histories) for panel in PANELS)
    for k, (kind, (name, history)) in enumerate(zip(_CLASSES, histories, strict=True)):
        x = 52 + 300 * k
        body += line([(x, 272), (x + 26, 272)], kind)
        last = history.column("val_accuracy")[-1]
        words = f"{name}, {len(history.epochs)} epochs, {last:.2%} of the test digits right"
        body += text(x + 32, 276, words)
    body += line([(52, 292), (78, 292)], "axis t")
    body += text(84, 296, "dashed: the test digits, which the networks do not learn from")
    return svg(730, 308, body)


def profile_picture(profile: Profile, shown: int = 14) -> str:
    """Return the longest launches of a run as bars, with their modules and times."""
    rows = sorted(profile.rows, key=lambda row: -row.seconds)
    first, rest = rows[:shown], rows[shown:]
    scale = 240 / first[0].seconds
    lines = [(row.kernel, row.module, row.seconds) for row in first]
    lines += [(f"{len(rest)} more", "", sum(row.seconds for row in rest))] if rest else []
    body = text(8, 22, f"a training step of {profile.name.removesuffix('_train')}, by kernel")
    body += text(722, 22, f"{time_text(profile.seconds)} in {len(rows)} launches", "end")
    for k, (kernel, module, seconds) in enumerate(lines):
        y = 46 + 20 * k
        body += text(8, y, kernel[:38]) + text(270, y, module[:22])
        body += f'<rect class="k" x="410" y="{y - 10}" width="{seconds * scale:.1f}" height="12"/>'
        body += text(722, y, time_text(seconds), "end")
    return svg(730, 46 + 20 * len(lines), body)


def graph_picture() -> str:
    """Return the drawing of a small graph, the one that notebooks show."""

    def block(x: Value, w: Value, b: Value) -> Value:
        return x + ops.gelu(ops.layer_norm(x, b, b) @ w + b)

    graph = frame.trace(block, *[frame.spec(shape) for shape in (("batch", 64), (64, 64), (64,))])
    view = graph._repr_html_()
    drawing = view[view.index("<svg") : view.index("</svg>")]
    head, body = drawing.split(">", 1)
    style = (
        "svg{color:#24292f;font-family:ui-monospace,monospace}"
        "@media(prefers-color-scheme:dark){svg{color:#d1d7e0}}"
    )
    return f"{head}><style>{style}</style>{body}</svg>\n"


def main() -> None:
    """Run everything and write the pictures."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    runs = [(recipe, *trained(recipe)) for recipe in RECIPES]
    recipe, model, _ = runs[-1]
    data = digits()
    batch = (data.train_images[: recipe.batch], data.train_labels[: recipe.batch])
    model.train_step(*batch, learning_rate=np.float32(0))
    profile = model.profile(*batch, learning_rate=np.float32(0), entry=TRAIN_STEP, runs=PROFILES)
    pictures = {
        "training": training_picture([(recipe.name, history) for recipe, _, history in runs]),
        "profile": profile_picture(profile),
        "graph": graph_picture(),
    }
    for name, picture in pictures.items():
        (out / f"{name}.svg").write_text(picture, encoding="utf-8")


if __name__ == "__main__":
    main()
