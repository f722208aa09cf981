"""`frame inspect`: what is in a .frame file, or what a model compiles to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from frame.cli.output import facts, heading, print_json

if TYPE_CHECKING:
    from frame.runtime.model import CompiledModel

EPILOG = """\b
Examples:
  frame inspect model.frame                    signature, parameters, device
  frame inspect model.frame --graph            the declared graph as text
  frame inspect model.frame --source llvm      the code; also loop, assembly
  frame inspect model.frame --source assembly --node net.0
  frame inspect models.digits:mlp --input batch,784 --source loop
  frame inspect model.frame --json

A node is a value of --graph (%7), a module path, or a kernel as `frame profile` names it."""


@click.command("inspect", epilog=EPILOG)
@click.argument("model")
@click.option("--input", "inputs", multiple=True, metavar="[NAME=]SHAPE[:DTYPE]", help="An input.")
@click.option("--backend", help="A backend of `frame backends`, for a MODEL that is not a file.")
@click.option("--graph", "show_graph", is_flag=True, help="Print the declared graph.")
@click.option("--source", "stage", metavar="STAGE", help="Print the generated code of a stage.")
@click.option("--node", metavar="NODE", help="Of one node, kernel or module alone.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    model: str,
    inputs: tuple[str, ...],
    backend: str | None,
    show_graph: bool,
    stage: str | None,
    node: str | None,
    as_json: bool,
) -> None:
    """Show what a model is and what it compiles to.

    MODEL is a .frame file or a model as `frame compile` takes it. The machine code in a file is not
    run. Without an option the signature and the parameters are shown.
    """
    from frame.cli.words import CommandError

    if node and not stage:
        raise CommandError(f"--node {node} goes with --source STAGE, such as --source assembly")
    compiled = blank_model(model, inputs, backend)
    data = _parts(compiled, show_graph, stage, node)
    if as_json:
        print_json(data)
    elif show_graph or stage:
        click.echo("\n\n".join(text for text in (data.get("graph"), data.get("source")) if text))
    else:
        _show(compiled, data)


def blank_model(model: str, inputs: tuple[str, ...], backend: str | None) -> CompiledModel:
    """Return the model of a .frame file, or compile one whose parameters may be zeros.

    Raises:
        CommandError: inputs or a backend are given for a file, which has its own.
    """
    from frame.cli.arguments import parse_input_spec
    from frame.cli.models import compile_model, load_model
    from frame.cli.words import CommandError, word
    from frame.runtime.backends import backend as find_backend

    if not model.endswith(".frame"):
        specs = [parse_input_spec(text) for text in inputs]
        with word("--backend", backend):
            find_backend(backend)
        return compile_model(load_model(model), specs, blank=True, backend=backend)
    if inputs or backend:
        raise CommandError(
            f"{model} has its own inputs and backend: leave out --input and --backend"
        )
    from frame.runtime.framefile import load

    loaded: CompiledModel = load(model)
    return loaded


def _parts(
    compiled: CompiledModel, show_graph: bool, stage: str | None, node: str | None
) -> dict[str, Any]:
    from frame.cli.describe import model_facts

    data = model_facts(compiled)
    if show_graph:
        data["graph"] = str(compiled.graph)
    if stage:
        data["source"] = _source(compiled, stage, node)
    return data


def _source(compiled: CompiledModel, stage: str, node: str | None) -> str:
    from frame.cli.words import CommandError

    stages = compiled.source(node)
    if stage not in stages:
        raise CommandError(f"--source {stage}: the stages are {', '.join(stages) or 'none'}")
    return stages[stage]


def _show(compiled: CompiledModel, data: dict[str, Any]) -> None:
    from frame.cli.describe import model_text
    from frame.runtime.summary import table_lines

    click.echo(facts(model_text(data), indent=0))
    if compiled.module is not None or compiled.params:
        head, *lines = table_lines(compiled)
        click.echo("\n".join(["", heading(head), *lines]))
