"""What a wrong word of the command line is told: the mistakes that end with exit code 2."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from frame.core.errors import InvalidArgumentError, NotFoundError


class CommandError(InvalidArgumentError):
    """A word of the command line that can't be meant; the work has not begun."""


@contextmanager
def word(option: str, text: str | None = None) -> Iterator[None]:
    """Let a wrong value found in the block be a mistake in the word `option` of the command.

    An empty text is one, too: a shell makes it of a variable that is not set.

    Raises:
        CommandError: with the message that the block gave, after the name of the option.
    """
    if text == "":
        raise CommandError(f"{option}: expected a value, received an empty text")
    try:
        yield
    except CommandError:
        raise
    except (InvalidArgumentError, NotFoundError) as error:
        said = str(error)
        raise CommandError(said if said.startswith(option) else f"{option}: {said}") from error


@contextmanager
def spec_named(spec: str) -> Iterator[None]:
    """Let the errors about fields of a spec, found in the block, begin with the name of its file.

    Raises:
        InvalidArgumentError: with the file before the field.
    """
    try:
        yield
    except CommandError:
        raise
    except InvalidArgumentError as error:
        text = str(error)
        if text.startswith(spec):
            raise
        raise InvalidArgumentError(f"{spec}: {text}") from error


class Seed(click.ParamType):
    """An integer from 0 to a limit that help pages do not spell out in 19 digits."""

    name = "integer"

    def __init__(self, bits: int) -> None:
        self._bits = bits

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the seed; fail with exit code 2 for another text."""
        text = str(value)
        if text.isascii() and text.isdigit() and len(text) < 40 and int(text) < 1 << self._bits:
            return int(text)
        self.fail(f"expected an integer from 0 to 2**{self._bits} - 1, received {text!r:.60}")


INSTEAD = {
    "bench": "benchmarks are scripts of the checkout: python -m benchmarks.suite",
}
"""What to use in place of a command that people look for and this version does not have."""


def unknown_command(name: str, known: list[str]) -> str:
    """Return what to say to a command that does not exist."""
    text = f"there is no command {name!r:.60}"
    if name in INSTEAD:
        return f"{text}: {INSTEAD[name]}"
    close = difflib.get_close_matches(name, known, n=1)
    return f"{text}; did you mean {close[0]!r}?" if close else f"{text}; see {', '.join(known)}"
