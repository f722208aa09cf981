"""`frame run`: a .frame file on arrays from files."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

import click

from frame.cli.output import facts, print_json

EPILOG = """\b
Examples:
  frame run model.frame --input x=image.npy
  frame run model.frame --input digits.npz:images -o scores.npy
  frame run model.frame --input x=image.npy --json
  frame run model.frame --input x=image.npy --trust

An input is a .npy file, or a member of a .npz file (file.npz:member). Its name may be left out when
the model has one input. The outputs go to a .npy file, or to a .npz file with one member each.

--trust runs the machine code that the file holds. A file can't prove who made it, so use --trust
for files that you made yourself; without it the code is generated anew, or taken from the cache."""


@click.command("run", epilog=EPILOG)
@click.argument("file", type=click.Path())
@click.option("--input", "inputs", multiple=True, metavar="[NAME=]FILE", help="An input array.")
@click.option("-o", "--output", type=click.Path(dir_okay=False), help="Save to .npy or .npz.")
@click.option("--trust", is_flag=True, help="Run the machine code in the file.")
@click.option("--stats", is_flag=True, help="Tell what loading took: passes, code, cache, time.")
@click.option("--json", "as_json", is_flag=True, help="Print the outputs as one JSON object.")
def command(
    file: str,
    inputs: tuple[str, ...],
    output: str | None,
    trust: bool,
    stats: bool,
    as_json: bool,
) -> None:
    """Run the model in FILE on arrays from files, and show or save the outputs."""
    from frame.cli.arguments import (
        by_name,
        check_output,
        load_array,
        parse_input_file,
        save_arrays,
    )
    from frame.runtime.framefile import load
    from frame.runtime.statistics import compile_stats

    sources = [parse_input_file(text) for text in inputs]
    if output is not None:
        check_output(output)
    start = time.perf_counter()
    model = load(file, trust=trust)
    entry = model.entry(model.mode)
    loaded = time.perf_counter()
    chosen = by_name(sources, [port.name for port in entry.inputs])
    arrays = {name: load_array(source) for name, source in chosen.items()}
    ready = time.perf_counter()
    results = entry.run((), arrays)
    seconds = {"load_seconds": loaded - start, "run_seconds": time.perf_counter() - ready}
    named = dict(zip((port.name for port in entry.signature.outputs), results, strict=True))
    if output:
        save_arrays(output, named)
    found = {**asdict(compile_stats()), **seconds} if stats else {}
    _show(named, output, found, as_json)


def _show(
    named: dict[str, Any], output: str | None, statistics: dict[str, Any], as_json: bool
) -> None:
    from frame.cli.describe import array_facts, array_text

    if not as_json:
        rows = {name: array_text(array) for name, array in named.items()}
        rows |= {"saved": output} if output else {}
        rows |= {name.replace("_", " "): f"{value:.3g}" for name, value in statistics.items()}
        click.echo(facts(rows, indent=0))
        return
    described = {name: array_facts(array) for name, array in named.items()}
    if not output:
        described = {
            name: data | {"values": named[name].tolist()} for name, data in described.items()
        }
    found = {"statistics": statistics} if statistics else {}
    print_json({"outputs": described, "file": output, **found})
