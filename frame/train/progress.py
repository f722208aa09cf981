"""The progress bar of a training run."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Advance = Callable[[str], None]


@contextmanager
def progress_bar(wanted: bool | None, total: int, done: int = 0) -> Iterator[Advance]:
    """Show a bar on standard error; the function that it gives advances it by a step.

    `wanted` is None for a bar on a terminal alone. Without a bar nothing is written. `done` of
    `total` steps have been done before. The bar shows the steps a second and the time that is left.
    """
    if wanted is False or (wanted is None and not sys.stderr.isatty()):
        yield _nothing
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        Task,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.text import Text

    class Speed(ProgressColumn):
        """The steps a second."""

        def render(self, task: Task) -> Text:
            """Return the column."""
            return Text("" if task.speed is None else f"{task.speed:,.0f} steps/s")

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        Speed(),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    # On a terminal the bar goes when the work is done; elsewhere its last state is all there is.
    with Progress(*columns, console=console, transient=console.is_terminal) as bar:
        task = bar.add_task("training", total=total, completed=done)
        yield lambda text: bar.update(task, advance=1, description=text)


def _nothing(text: str) -> None:
    """No bar."""
