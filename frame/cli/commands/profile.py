"""`frame profile`: where the time of a run goes, kernel by kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from frame.cli.commands.inspect import blank_model
from frame.cli.output import print_json

if TYPE_CHECKING:
    from frame.hal.interfaces import Port
    from frame.runtime.model import CompiledModel

EPILOG = """\b
Examples:
  frame profile model.frame --size batch=32
  frame profile models.digits:mlp --input 32,784
  frame profile model.frame --size batch=32 --runs 51 --json

The inputs are random numbers (integers are zeros), those of MODEL's own shapes. GFLOP/s counts a
multiply-add as two operations, GB/s what is read and written; the roofline is the share of what
this machine can do at best, as measured at the first profile."""


@click.command("profile", epilog=EPILOG)
@click.argument("model")
@click.option("--input", "inputs", multiple=True, metavar="[NAME=]SHAPE[:DTYPE]", help="An input.")
@click.option("--size", "sizes", multiple=True, metavar="NAME=N", help="The number for a symbol.")
@click.option("--backend", help="A backend of `frame backends`, for a MODEL that is not a file.")
@click.option("--runs", type=click.IntRange(1), default=11, help="Show the run of median time of.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    model: str,
    inputs: tuple[str, ...],
    sizes: tuple[str, ...],
    backend: str | None,
    runs: int,
    as_json: bool,
) -> None:
    """Show time, GFLOP/s, GB/s, share of the roofline and module of each kernel.

    MODEL is a .frame file or a model as `frame compile` takes it.
    """
    chosen = dict(map(_size, sizes))
    compiled = blank_model(model, inputs, backend)
    _require_known(chosen, compiled)
    arrays = [_array(port, chosen) for port in compiled.entry(compiled.mode).inputs]
    profile = compiled.profile(*arrays, runs=runs)
    if as_json:
        print_json(profile.to_data())
    else:
        click.echo(str(profile))


def _size(text: str) -> tuple[str, int]:
    from frame.cli.words import CommandError

    name, _, number = text.partition("=")
    if not name or not number.isdecimal():
        raise CommandError(f"--size {text}: expected a symbol and a number, --size batch=32")
    return name, int(number)


def _require_known(sizes: dict[str, int], model: CompiledModel) -> None:
    from frame.cli.words import CommandError

    symbols = model.graph.symbols
    for name in sizes:
        if name not in symbols:
            known = ", ".join(symbols) or "none"
            raise CommandError(f"--size {name}: there is no such symbol; the symbols are {known}")
    missing = [name for name in symbols if name not in sizes]
    if missing:
        raise CommandError(
            f"missing --size for {', '.join(missing)}: give a number, --size {missing[0]}=32"
        )


def _array(port: Port, sizes: dict[str, int]) -> Any:
    import numpy as np

    from frame.core.shapes import bind_shape

    shape, kind = bind_shape(port.type.shape, sizes), port.type.dtype
    if not kind.is_float:
        return np.zeros(shape, kind.numpy)
    return np.random.default_rng(0).standard_normal(shape).astype(kind.numpy)
