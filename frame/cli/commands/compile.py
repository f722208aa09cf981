"""`frame compile`: a model to machine code, in the cache and, with -o, in a .frame file."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from frame.cli.output import facts, print_json
from frame.cli.words import CommandError, Seed, word

if TYPE_CHECKING:
    from frame.runtime.model import CompiledModel

EPILOG = """\b
MODEL is one of
  package.module:factory   a function without arguments that returns a
                           module, a graph or a function of values;
                           also the module, graph or function itself
  spec.json                a model spec, as `frame train` takes it
  graph.txt                a graph as `frame inspect --graph` prints it

\b
Examples:
  frame compile models.digits:mlp --input batch,784
  frame compile models.digits:mlp --input x=batch,784 -o mlp.frame
  frame compile relu.txt --target x86-64-v3 --json

--input gives the shape of an input: numbers, or names for sizes that are known only when the model
is called. `x=1x3x224x224`, `x=batch,784:float32` and `784` are inputs; `scalar:int64` has no
dimension. A spec and a graph text have their own inputs."""


@click.command("compile", epilog=EPILOG)
@click.argument("model")
@click.option("-o", "--output", type=click.Path(dir_okay=False), help="Save to a .frame file.")
@click.option("--input", "inputs", multiple=True, metavar="[NAME=]SHAPE[:DTYPE]", help="An input.")
@click.option("--backend", help="A backend of `frame backends` (default: FRAME_BACKEND or cpu).")
@click.option("--target", help="What to generate code for, such as x86-64-v3 (default: native).")
@click.option("--params", type=click.Path(), help="Weights, .safetensors, .npz or .onnx.")
@click.option(
    "--seed", type=Seed(64), default=0, show_default=True, help="Seed of the initialisers."
)
@click.option(
    "--tune",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="Measure schedules on this machine for at most so long, and keep the fastest.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(model: str, output: str | None, as_json: bool, **options: Any) -> None:
    """Compile MODEL to machine code.

    Without -o this fills the cache, so that the program that uses MODEL starts fast. With -o the
    model, its weights and its machine code go to one file, which `frame run` and frame.load read.
    """
    _check_output(output)
    started = time.perf_counter()
    compiled = _compiled(model, blank=output is None, **options)
    seconds = time.perf_counter() - started
    data = _facts(compiled, seconds)
    if output:
        compiled.save(output)
        data["file"] = output
    if as_json:
        print_json(data)
        return
    from frame.cli.describe import model_text

    done = "loaded" if data["from_cache"] else "compiled"
    where = " from the cache, nothing was compiled" if data["from_cache"] else ""
    rows = model_text(data) | {done: f"in {seconds:.3f} s{where}"}
    click.echo(facts(rows | ({"file": output} if output else {}), indent=0))


def _check_output(path: str | None) -> None:
    if path is not None and not path.endswith(".frame"):
        raise CommandError(f"--output {path}: expected a name that ends in .frame")


def _facts(compiled: CompiledModel, seconds: float) -> dict[str, Any]:
    from frame.cli.describe import model_facts

    hit = compiled.entry(compiled.mode).loaded.hit
    return {**model_facts(compiled), "seconds": seconds, "from_cache": hit}


def _compiled(
    model: str,
    inputs: tuple[str, ...],
    backend: str | None,
    target: str | None,
    params: str | None,
    seed: int,
    tune: float | None,
    blank: bool,
) -> CompiledModel:
    from frame.cli.arguments import parse_input_spec
    from frame.cli.models import compile_model, load_model
    from frame.runtime.backends import backend as find_backend
    from frame.runtime.backends import target_of

    specs = [parse_input_spec(text) for text in inputs]
    with word("--backend", backend):
        owner = find_backend(backend)
    with word("--target", target):
        on = target_of(owner, None if target == "native" else target)
    declared = load_model(model)
    return compile_model(
        declared,
        specs,
        blank=blank,
        backend=backend,
        target=on,
        params=params,
        seed=seed,
        **({} if tune is None else {"tune": tune}),
    )
