"""`frame demo`: the main job, from training to a second process that starts from the cache."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from frame.cli.output import bytes_text, facts, print_json
from frame.cli.words import Seed

if TYPE_CHECKING:
    from frame.cli.demo import Reload, Trained

EPILOG = """\b
Examples:
  frame demo
  frame demo --seed 7
  frame demo --quick --out /tmp      three epochs a network, to see it work
  frame demo --json

The test images are every fifth of the 1,797 and are used only to count how many the trained network
gets right. The same seed gives the same network, bit for bit, on the same machine. The time of a
step includes the making of its batch; a multiply-add counts as two operations."""

_SHOWN = 16


@click.command("demo", epilog=EPILOG)
@click.option(
    "--seed",
    type=Seed(63),
    default=0,
    show_default=True,
    help="Seed of initial weights, order and dropout.",
)
@click.option("--quick", is_flag=True, help="Train a few epochs only; the accuracy is lower.")
@click.option("-o", "--out", default="digits.frame", show_default=True, help="The file to save.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(seed: int, quick: bool, out: str, as_json: bool) -> None:
    """Train two networks on real handwritten digits with native code made on this machine.

    A perceptron and a small convolutional network are compiled, trained and tested. The second one
    is saved, and a new process loads it, from the cache, and predicts.
    """
    from frame.cli import demo
    from frame.data import digits

    start = time.perf_counter()
    show = _Silent() if as_json else _Text()
    path, data = demo.checked_output(out), digits()
    show.head(seed, quick, len(data.train_labels), len(data.test_labels))
    trained = []
    for recipe in demo.RECIPES:
        trained.append(demo.train(recipe, data, seed, quick, False if as_json else None))
        show.trained(trained[-1])
    model = trained[-1].model
    model.save(path)
    show.saved(model.name, path, path.stat().st_size)
    reload = demo.reload(path, model(data.test_images), data)
    show.reloaded(reload, data.test_labels)
    seconds = time.perf_counter() - start
    show.end(seconds)
    if as_json:
        print_json(_data(seed, quick, trained, str(path), reload, seconds))


def _data(
    seed: int, quick: bool, trained: list[Trained], path: str, reload: Reload, seconds: float
) -> dict[str, Any]:
    return {
        "seed": seed,
        "quick": quick,
        **_machine(),
        "models": [each.to_data() for each in trained],
        "file": path,
        "reload": reload.to_data(),
        "seconds": seconds,
    }


def _machine() -> dict[str, Any]:
    from frame._version import __version__
    from frame.runtime.backends import backend

    owner = backend()
    facts = owner.doctor()
    return {
        "frame": __version__,
        "backend": owner.name,
        "processor": facts.get("cpu", owner.target().cpu),
        "threads": int(facts.get("threads", 1)),
    }


class _Silent:
    """Shows nothing: the JSON object at the end says it all."""

    def head(self, seed: int, quick: bool, train: int, test: int) -> None: ...
    def trained(self, trained: Trained) -> None: ...
    def saved(self, name: str, path: Any, size: int) -> None: ...
    def reloaded(self, reload: Reload, labels: Any) -> None: ...
    def end(self, seconds: float) -> None: ...


class _Text(_Silent):
    """Shows each part of the job when it is done."""

    def head(self, seed: int, quick: bool, train: int, test: int) -> None:
        """Say what is going to happen."""
        machine = _machine()
        how = ", a few epochs only (--quick)" if quick else ""
        click.echo(
            f"frame {machine['frame']} on {machine['backend']}: {machine['processor']}, "
            f"{machine['threads']} threads; seed {seed}\n"
            f"{train:,} handwritten digits to learn from, {test} to test on{how}"
        )

    def trained(self, trained: Trained) -> None:
        """Show a network as soon as it is trained."""
        data = trained.to_data()
        cached = " (loaded from the cache)" if data["from_cache"] else ""
        rows = {
            "test accuracy": click.style(f"{data['test_accuracy']:.2%}", bold=True),
            "compile time": f"{data['compile_seconds']:.2f} s{cached}",
            "training": f"{data['training_seconds']:.2f} s for {data['epochs']} epochs, "
            f"{data['steps']:,} steps of {data['batch']} images",
            "time per step": f"{data['seconds_per_step'] * 1e3:.2f} ms",
            "speed": f"{data['gflops']:.1f} GFLOP/s",
        }
        title = f"{data['name']}, {data['parameters']:,} parameters"
        click.echo(f"\n{click.style(title, bold=True)}\n{facts(rows)}")

    def saved(self, name: str, path: Any, size: int) -> None:
        """Show the file."""
        click.echo(f"\n{name} saved as {path} ({bytes_text(size)})")

    def reloaded(self, reload: Reload, labels: Any) -> None:
        """Show what the second process did, and its first predictions."""
        found, scores = reload.statistics, "same scores" if reload.same_scores else "other scores"
        rows = {
            "passes run": found["passes"],
            "compiled": found["compiled"],
            "from the cache": f"{found['manifests']} program, {found['artifacts']} pieces of code",
            "load, first run": f"{found['load_seconds']:.3f} s, {found['run_seconds']:.3f} s",
            "whole process": f"{reload.seconds:.2f} s",
            "predicted": f"{len(labels)} digits, {reload.accuracy:.2%} right, {scores}",
            "written": "  ".join(map(str, labels[:_SHOWN])),
            "read": "  ".join(map(str, reload.predictions[:_SHOWN])),
        }
        title = "a new process loads the file"
        click.echo(f"\n{click.style(title, bold=True)}\n{facts(rows)}")

    def end(self, seconds: float) -> None:
        """Show the time of it all."""
        click.echo(f"\ndone in {seconds:.1f} s")
