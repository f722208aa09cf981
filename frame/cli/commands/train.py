"""`frame train`: check a model spec in JSON, train what it declares, and report."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from frame.cli.output import print_json
from frame.cli.words import CommandError, spec_named, word

if TYPE_CHECKING:
    from frame.frontend import Plan, Result

EPILOG = """\b
Examples:
  frame train spec.json --check
  frame train spec.json
  frame train spec.json -o model.frame --json
  frame train spec.json --backend intel_npu

The lines that training prints: `step N loss L` for the steps that training.log_every names and for
the last, then `final_loss` and the predictions of the trained model for the first batch. The JSON
Schema of a spec is in the folder frame/frontend/schemas of the package."""


@click.command("train", epilog=EPILOG)
@click.argument("spec", type=click.Path())
@click.option("--check", is_flag=True, help="Check the spec and its data, and do not train.")
@click.option("--backend", help="Where to train, in place of what the spec says.")
@click.option("-o", "--output", type=click.Path(dir_okay=False), help="Save to a .frame file.")
@click.option("--outside", is_flag=True, help="Allow data outside of the folder of the spec.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    spec: str, check: bool, backend: str | None, output: str | None, outside: bool, as_json: bool
) -> None:
    """Train the model that the JSON file SPEC declares."""
    from frame import frontend
    from frame.runtime.backends import backend as find_backend

    _check_words(output, check)
    with word("--backend", backend):
        find_backend(backend)
    with spec_named(spec):
        plan = frontend.load(spec, outside=outside)
        facts = frontend.check_data(plan) if check else {}
    if check:
        if as_json:
            print_json({"ok": True, "model": plan.name, **facts})
        else:
            click.echo(f"OK {plan.name}")
        return
    start = time.perf_counter()
    with spec_named(spec):
        result = _trained(plan, backend, as_json)
    seconds = time.perf_counter() - start
    saved = [path for path in (plan.save, output) if path]
    if output:
        result.model.save(output)
    _report(plan, result, saved, seconds, as_json)


def _check_words(output: str | None, check: bool) -> None:
    if output is not None and not output.endswith(".frame"):
        raise CommandError(f"--output {output}: expected a name that ends in .frame")
    if output is not None and check:
        raise CommandError("--check trains nothing, so there is nothing to save: leave out -o")


def _trained(plan: Plan, backend: str | None, as_json: bool) -> Result:
    from frame import frontend

    def line(step: int, loss: float) -> None:
        click.echo(f"step {step} loss {loss:.6g}", err=as_json)

    return frontend.train(plan, backend=backend, report=line, progress=None)


def _report(plan: Plan, result: Result, saved: list[str], seconds: float, as_json: bool) -> None:
    from frame.frontend.plan import SHOWN

    if as_json:
        print_json(
            {
                "model": plan.name,
                "backend": result.model.entry(result.model.mode).declared.backend,
                "steps": len(result.losses),
                "loss_history": list(result.losses),
                "final_loss": result.final_loss,
                "validation_loss": result.validation,
                "predictions": result.predictions.tolist(),
                "files": saved,
                "seconds": seconds,
            }
        )
        return
    click.echo(f"final_loss {result.final_loss:.6g}")
    if result.validation is not None:
        click.echo(f"validation_loss {result.validation:.6g}")
    values = result.predictions.ravel()
    more = " ..." if values.size > SHOWN else ""
    click.echo(f"predictions = {' '.join(f'{value:.6g}' for value in values[:SHOWN])}{more}")
    for path in saved:
        click.echo(f"saved {path}")
