"""`frame backends`: which backends there are, and which devices each can use now."""

from __future__ import annotations

import click

from frame.cli.output import print_json, table

EPILOG = """\b
Examples:
  frame backends           a table of the backends
  frame backends --json    the same for programs

A backend is found through the entry-point group frame.backends, so a package that you install can
add one. `frame doctor` shows what each backend says about itself."""


@click.command("backends", epilog=EPILOG)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON list.")
def command(as_json: bool) -> None:
    """List the backends and the devices they see.

    A backend is `ready` when it has a device, `no device` when it finds none or lacks its driver,
    and `unusable` when it can't be loaded. The reasons follow the table.
    """
    from frame.cli.discovery import backend_reports

    reports = backend_reports()
    if as_json:
        print_json([report.as_data() for report in reports])
        return
    rows = [(each.name, each.state, ", ".join(each.devices) or "-") for each in reports]
    click.echo(table(("backend", "state", "devices"), rows))
    for each in reports:
        if problem := each.problem or (each.facts.get("problem", "") if not each.devices else ""):
            click.echo(f"\n{each.name}: {problem}")
