"""`frame doctor`: the facts about this machine that explain what frame does on it."""

from __future__ import annotations

from typing import Any

import click

from frame.cli.output import facts, heading, print_json, screen_columns, wrapped

EPILOG = """\b
Examples:
  frame doctor             a report for people
  frame doctor --json      the same for programs, to attach to a bug report

The exit code is 1 when a problem is found that keeps frame from working."""


@click.command("doctor", epilog=EPILOG)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(as_json: bool) -> int:
    """Check this machine, the packages and the cache.

    Shows the versions of frame and of what it needs, the processor and its features, the state of
    the cache, the settings in force and every backend.
    """
    from frame.cli.diagnosis import diagnose

    report = diagnose()
    if as_json:
        print_json(report)
    else:
        _print(report)
    return 1 if report["problems"] else 0


def _print(report: dict[str, Any]) -> None:
    problems, columns = report["problems"], screen_columns()
    for title, rows in (report | {"cache": _cache_rows(report["cache"])}).items():
        if title != "problems":
            click.echo(heading(title))
            click.echo(facts(rows, columns=columns) if rows else "  none")
    click.echo(heading("problems"))
    for problem in problems or ["none"]:
        click.echo("  " + "\n    ".join(wrapped(problem, columns - 4)))


def _cache_rows(data: dict[str, Any]) -> dict[str, Any]:
    """The facts of the cache, with one row that says whether its files are sound."""
    from frame.cli.commands.cache import cache_rows

    if "damaged" not in data:
        return data
    rows = {name: data[name] for name in data if name not in ("sound", "damaged")}
    bad = f"{data['damaged']} of the files are damaged: frame cache verify names them"
    return cache_rows(rows) | {"health": bad if data["damaged"] else "every file is sound"}
