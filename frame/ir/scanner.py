"""The tokens of a text, with line and column, for strict recursive-descent parsers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from frame.core.dataclass import dataclass
from frame.core.errors import FrameError, InvalidArgumentError
from frame.ir.printer import MAX_STRING

MAX_TEXT = 1 << 28
"""The longest text, in characters, that is looked at."""

_TOKEN = re.compile(
    r"(?P<space>[ \t\r\n]+|//[^\n]*)"
    r"|(?P<value>%[0-9]+)"
    r"|(?P<hex>0x[0-9a-f]+)"
    r"|(?P<float>[0-9]+(?:\.[0-9]*(?:[eE][+-]?[0-9]+)?|[eE][+-]?[0-9]+))"
    r"|(?P<integer>[0-9]+)"
    r"|(?P<name>[A-Za-z_][A-Za-z0-9_]*)"
    r'|(?P<string>"(?:[^"\\\n]|\\[^\n])*")'
    r"|(?P<digest>#[0-9a-f]+)"
    r"|(?P<sign>[-+*(){}\[\]<>|,:=@])"
    r"|(?P<unknown>.)",
    re.ASCII | re.DOTALL,
)
_ESCAPE = re.compile(r"\\(?:u([0-9a-f]{4})|U([0-9a-f]{8})|(.))", re.DOTALL)
_SIMPLE = {"\\": "\\", '"': '"', "n": "\n", "t": "\t", "r": "\r"}


@dataclass(frozen=True, slots=True)
class Token:
    """A token: its kind (the name of its pattern, or `end`), text and offset."""

    kind: str
    text: str
    offset: int

    def __str__(self) -> str:
        if self.kind == "end":
            return "the end of the text"
        return repr(self.text if len(self.text) <= 40 else self.text[:40] + "...")


class Scanner:
    """Walks over the tokens of a text; `token` is the current one, then `ahead`, `beyond`."""

    def __init__(self, text: str) -> None:
        if not isinstance(text, str):
            raise InvalidArgumentError(f"expected the text of a graph, received {type(text)}")
        if len(text) > MAX_TEXT:
            raise InvalidArgumentError(
                f"expected a text of at most {MAX_TEXT} characters, received {len(text)}"
            )
        self.text = text
        self._stream = self._tokens()
        self.token = next(self._stream)
        self.ahead = next(self._stream)
        self.beyond = next(self._stream)

    def _tokens(self) -> Iterator[Token]:
        for match in _TOKEN.finditer(self.text):
            kind = match.lastgroup
            if kind != "space":
                yield Token(str(kind), match.group(), match.start())
        end = Token("end", "", len(self.text))
        while True:
            yield end

    def take(self) -> Token:
        """Return the current token and go on to the next one."""
        token = self.token
        self.token, self.ahead, self.beyond = self.ahead, self.beyond, next(self._stream)
        return token

    def at(self, *texts: str) -> bool:
        """Tell whether the current token is one of these signs or words."""
        return self.token.text in texts and self.token.kind in ("sign", "name")

    def accept(self, text: str) -> bool:
        """Take the current token if it is this sign or word."""
        found = self.at(text)
        if found:
            self.take()
        return found

    def expect(self, text: str) -> Token:
        """Take this sign or word; fail on any other token."""
        if not self.at(text):
            self.fail(repr(text))
        return self.take()

    def expect_kind(self, kind: str, what: str) -> Token:
        """Take a token of a kind; fail, saying that `what` was expected, on any other."""
        if self.token.kind != kind:
            self.fail(what)
        if len(self.token.text) > MAX_STRING:
            self.refuse(f"{what} is longer than {MAX_STRING} characters")
        return self.take()

    def position(self, token: Token) -> tuple[int, int]:
        """Return the line and column of a token, both counted from 1."""
        start = self.text.rfind("\n", 0, token.offset) + 1
        return self.text.count("\n", 0, token.offset) + 1, token.offset - start + 1

    def fail(self, expected: str, token: Token | None = None) -> NoReturn:
        """Raise: something else was expected at a token (by default the current one)."""
        token = token or self.token
        self.refuse(f"expected {expected}, found {token}", token)

    def refuse(self, problem: str, token: Token | None = None) -> NoReturn:
        """Raise InvalidArgumentError with the position of a token (by default the current one)."""
        line, column = self.position(token or self.token)
        raise InvalidArgumentError(f"line {line}, column {column}: {problem}")

    @contextmanager
    def located(self, token: Token) -> Iterator[None]:
        """Give the errors of the block, which know no text, the position of a token."""
        try:
            yield
        except FrameError as error:
            line, column = self.position(token)
            message = f"line {line}, column {column}: {error}"
            raise InvalidArgumentError(message) from error

    def integer(self, what: str, digits: int = 20) -> int:
        """Take an integer of a bounded number of digits."""
        token = self.expect_kind("integer", what)
        if len(token.text) > digits:
            self.refuse(f"{what} must have at most {digits} digits, found {token}", token)
        return int(token.text)

    def string(self, what: str) -> str:
        """Take a string literal and return what it stands for."""
        token = self.expect_kind("string", what)
        return _ESCAPE.sub(lambda match: self._unescape(match, token), token.text[1:-1])

    def _unescape(self, match: re.Match[str], token: Token) -> str:
        short, long, simple = match.groups()
        if simple in _SIMPLE:
            return _SIMPLE[simple]
        code = int(short or long or "ffffffff", 16)
        if code > 0x10FFFF:
            self.refuse(f"unknown escape {match.group()!r} in a string", token)
        return chr(code)
