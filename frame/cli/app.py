"""The command group, and the one place where an exception becomes an exit code."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import Any

import click

from frame.cli import report
from frame.cli.output import colour_wanted
from frame.cli.words import unknown_command

# name -> (module, one line of help); the order is that of the help page
COMMANDS: dict[str, tuple[str, str]] = {
    "demo": ("frame.cli.commands.demo", "Train on handwritten digits, and start from the cache."),
    "compile": ("frame.cli.commands.compile", "Compile a model to machine code."),
    "run": ("frame.cli.commands.run", "Run a .frame file on arrays from files."),
    "train": ("frame.cli.commands.train", "Train the model that a JSON spec declares."),
    "emit": ("frame.cli.commands.emit", "Write a JSON spec as a project in C."),
    "inspect": ("frame.cli.commands.inspect", "Show what a model is and what it compiles to."),
    "profile": ("frame.cli.commands.profile", "Show where the time of a run goes, by kernel."),
    "backends": ("frame.cli.commands.backends", "List the backends and the devices they see."),
    "doctor": ("frame.cli.commands.doctor", "Check this machine, the packages and the cache."),
    "cache": ("frame.cli.commands.cache", "Show, check or empty the compile cache."),
}

HELP = """frame compiles deep-learning graphs to native code, in Python, on this machine.

Each command explains itself: `frame doctor --help`.
"""

EXIT_CODES = """Exit codes: 0 done, 1 the work failed, 2 the command was wrong, 130 interrupted.
Set FRAME_DEBUG=1 to see the Python traceback of an error."""


class _Commands(click.Group):
    """A group whose commands are modules that are imported on demand."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of the help page."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command, or None for an unknown name."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(COMMANDS[cmd_name][0]).command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command of the first word; say what to use in place of one that is not there."""
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            ctx.fail(unknown_command(args[0], list(COMMANDS)))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands from the table, without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, row[1]) for name, row in COMMANDS.items()])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the exit codes as they stand."""
        formatter.write_paragraph()
        formatter.write(EXIT_CODES + "\n")


def _print_version(ctx: click.Context, parameter: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from frame._version import __version__

        click.echo(f"frame {__version__}")
        ctx.exit()


@click.group(
    name="frame",
    cls=_Commands,
    invoke_without_command=True,
    help=HELP,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version and exit.",
)
@click.pass_context
def frame_command(ctx: click.Context) -> None:
    """Choose the subcommand; the work is in its module."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help(), err=True)
        ctx.exit(report.USAGE)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; a user's mistake never shows a traceback.

    `arguments` are the words after `frame`; None means those of the process.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    report.route_warnings()
    try:
        options: dict[str, Any] = {"color": colour_wanted()}
        result = frame_command.main(words, prog_name="frame", standalone_mode=False, **options)
    except BaseException as error:  # noqa: BLE001 - every exception ends as an exit code
        command = next((word for word in words if word in COMMANDS), "")
        return report.exit_code_of(error, report.debug_level() > 0, command)
    return result if isinstance(result, int) else report.OK
