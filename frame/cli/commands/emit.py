"""`frame emit`: a JSON model spec as a self-contained C99 project."""

from __future__ import annotations

import click

from frame.cli.output import print_json
from frame.cli.words import CommandError, spec_named

EPILOG = """\b
Examples:
  frame emit spec.json --out project
  frame emit spec.json --out project --rows 1 --no-train
  cmake -S project -B project/build && cmake --build project/build

The project holds the generated C, CMakeLists.txt, the initial weights and the data: it needs a C99
compiler and nothing else. NAME_infer reads weights and raw inputs and prints the outputs.
NAME_train trains from training.bin, prints what `frame train` prints, and writes trained.bin."""


@click.command("emit", epilog=EPILOG)
@click.argument("spec", type=click.Path())
@click.option("--out", required=True, type=click.Path(file_okay=False), help="The folder to fill.")
@click.option("--rows", type=click.IntRange(1), help="Rows of a batch (default: of training).")
@click.option("--train/--no-train", default=True, help="Whether to emit training, too.")
@click.option("--outside", is_flag=True, help="Allow data outside of the folder of the spec.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    spec: str, out: str, rows: int | None, train: bool, outside: bool, as_json: bool
) -> None:
    """Write the C99 project of the model that the JSON file SPEC declares."""
    from frame import frontend

    if rows is not None and train:
        raise CommandError("--rows is for inference alone: add --no-train")
    with spec_named(spec):
        plan = frontend.load(spec, outside=outside)
        files = frontend.emit(plan, out, train=train, rows=rows)
    if as_json:
        print_json({"model": plan.name, "folder": out, "files": list(files)})
    else:
        click.echo(f"emitted to {out}")
