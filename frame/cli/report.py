"""How the command shows errors, warnings and log records: one readable block on standard error."""

from __future__ import annotations

import logging
import traceback
import warnings
from typing import TextIO

import click

from frame.cli.output import colour_wanted
from frame.cli.words import CommandError
from frame.core import config
from frame.core.errors import FrameError, InternalError

OK, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130
BUG = "this is a bug in frame: please report it with the traceback (FRAME_DEBUG=1 shows it)"


def block(kind: str, text: str, colour: str, advice: str = "") -> str:
    """Return a message as one block: `kind: first line`, further lines indented, then advice."""
    first, *rest = text.strip().splitlines() or [""]
    lines = [f"{click.style(kind + ':', fg=colour, bold=True)} {first}"]
    lines += [f"  {line}".rstrip() for line in rest]
    if advice:
        lines.append(f"  {click.style('next:', bold=True)} {advice}")
    return "\n".join(lines)


def exit_code_of(error: BaseException, debug: bool = False, command: str = "") -> int:
    """Show an exception as one block and return the exit code that it means.

    `command` is the name of the command that was called, whose help an error leads to.
    """
    if isinstance(error, SystemExit):
        code = error.code or OK
        return code if code in (OK, FAILED, USAGE) else FAILED  # type: ignore[return-value]
    if isinstance(error, KeyboardInterrupt | click.Abort):
        _show("interrupted", "stopped by the user", "yellow")
        return INTERRUPTED
    if isinstance(error, BrokenPipeError):
        return FAILED  # the reader, `head` for example, has gone: there is nobody to tell
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        click.echo(error.format_message(), err=True)
        return USAGE
    if debug:
        click.echo("".join(traceback.format_exception(error)), err=True)
    if isinstance(error, click.ClickException):
        _show("error", error.format_message(), "red", _advice(error, command))
        return USAGE if isinstance(error, click.UsageError) else FAILED
    _show("error", _text(error), "red", _advice(error, command))
    return USAGE if isinstance(error, CommandError) else FAILED


def _text(error: BaseException) -> str:
    if isinstance(error, FrameError) and not isinstance(error, InternalError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    return f"{type(error).__name__}: {error}"


def _advice(error: BaseException, command: str) -> str:
    if isinstance(error, click.UsageError):
        # The parser of options raises some errors without the context.
        path = error.ctx.command_path if error.ctx else f"frame {command}".strip()
        return f"{path} --help shows what it takes"
    known = (FrameError, OSError, click.ClickException)
    is_bug = isinstance(error, InternalError) or not isinstance(error, known)
    return BUG if is_bug else ""


def _show(kind: str, text: str, colour: str, advice: str = "") -> None:
    click.echo(block(kind, text, colour, advice), err=True, color=colour_wanted())


def debug_level() -> int:
    """Return FRAME_DEBUG; an unreadable value counts as 0 here, its own error comes elsewhere."""
    try:
        return int(config.get("FRAME_DEBUG"))
    except FrameError:
        return 0


class _BlockHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        colour = "yellow" if record.levelno >= logging.WARNING else "cyan"
        _show(record.levelname.lower(), record.getMessage(), colour)


def route_warnings() -> None:
    """Show Python warnings and the records of the `frame` loggers as blocks.

    Warnings and above are shown; FRAME_DEBUG=1 adds the information, 2 and above the details.
    """
    warnings.showwarning = _show_warning
    logger = logging.getLogger("frame")
    if not any(isinstance(handler, _BlockHandler) for handler in logger.handlers):
        logger.addHandler(_BlockHandler())
    levels = {0: logging.WARNING, 1: logging.INFO}
    logger.setLevel(levels.get(debug_level(), logging.DEBUG))


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    _show("warning", str(message), "yellow")
