"""Kinds of values in a spec: what each accepts, and how JSON Schema says the same.

A table of fields is the one description of a section: `check` walks a document by it, `schema`
prints it for editors. What joins several fields (a shape that must fit another) stands in rules.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from frame.core.dataclass import dataclass
from frame.core.errors import InvalidArgumentError
from frame.frontend.document import NOTHING, Told, joined, wrong

Schema = dict[str, Any]

FLOAT32_MOST = 3.4028234663852886e38


class Kind(Protocol):
    """A kind of value."""

    def check(self, value: Any, path: str) -> Any:
        """Return the value as the program takes it; raise InvalidArgumentError with the path."""

    def schema(self) -> Schema:
        """Return the JSON Schema of the values that `check` accepts."""


@dataclass(frozen=True, slots=True)
class Text:
    """A string."""

    least: int = 0
    most: int = 4096
    pattern: str = ""

    def check(self, value: Any, path: str) -> str:
        """Return the string."""
        if not isinstance(value, str):
            wrong(path, "a string", value)
        if not self.least <= len(value) <= self.most:
            wrong(path, f"a string of {self.least} to {self.most} characters", value)
        if self.pattern and not re.fullmatch(self.pattern, value):
            wrong(path, f"a string that matches {self.pattern}", value)
        return value

    def schema(self) -> Schema:
        """Return the JSON Schema."""
        made: Schema = {"type": "string"}
        if self.least:
            made["minLength"] = self.least
        return made | ({"pattern": f"^{self.pattern}$"} if self.pattern else {})


@dataclass(frozen=True, slots=True)
class Choice:
    """One of some values."""

    values: tuple[Any, ...]

    def check(self, value: Any, path: str) -> Any:
        """Return the value."""
        if not any(type(value) is type(each) and value == each for each in self.values):
            wrong(path, _one_of(self.values), value, _close(value, self.values))
        return value

    def schema(self) -> Schema:
        """Return the JSON Schema."""
        return {"enum": list(self.values)} if len(self.values) > 1 else {"const": self.values[0]}


def _one_of(values: Sequence[Any]) -> str:
    texts = [f'"{value}"' if isinstance(value, str) else str(value) for value in values]
    return texts[0] if len(texts) == 1 else f"one of {', '.join(texts)}"


def _close(value: Any, known: Sequence[Any]) -> str:
    found = difflib.get_close_matches(str(value), [str(each) for each in known], n=1)
    return f'did you mean "{found[0]}"?' if found else ""


@dataclass(frozen=True, slots=True)
class Integer:
    """An integer from `low` to `high`."""

    low: int = -(2**31)
    high: int = 2**31 - 1

    def check(self, value: Any, path: str) -> int:
        """Return the integer."""
        good = isinstance(value, int) and not isinstance(value, bool)
        if not good or not self.low <= value <= self.high:
            wrong(path, f"an integer from {self.low} to {self.high}", value)
        return int(value)

    def schema(self) -> Schema:
        """Return the JSON Schema."""
        return {"type": "integer", "minimum": self.low, "maximum": self.high}


@dataclass(frozen=True, slots=True)
class Number:
    """A finite number that a float32 holds, above or from `low` on."""

    low: float | None = None
    above: float | None = None
    below: float | None = None

    def check(self, value: Any, path: str) -> float:
        """Return the number."""
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            wrong(path, self._words(), value)
        if not math.isfinite(value) or abs(value) > FLOAT32_MOST or not self._fits(value):
            wrong(path, self._words(), value, "the largest float32 is about 3.4e38")
        return float(value)

    def _fits(self, value: float) -> bool:
        return (
            (self.low is None or value >= self.low)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
        )

    def _words(self) -> str:
        bounds = [
            f"{word} {bound:g}"
            for word, bound in (
                ("of at least", self.low),
                ("above", self.above),
                ("below", self.below),
            )
            if bound is not None
        ]
        return " ".join(["a finite number", " and ".join(bounds)]).strip()

    def schema(self) -> Schema:
        """Return the JSON Schema."""
        made: Schema = {"type": "number"}
        low, above, below = self.low, self.above, self.below
        made["minimum"] = low if low is not None else -FLOAT32_MOST
        made["maximum"] = FLOAT32_MOST
        if above is not None:
            made["exclusiveMinimum"] = above
        return made | ({"exclusiveMaximum": below} if below is not None else {})


@dataclass(frozen=True, slots=True)
class Boolean:
    """True or false."""

    def check(self, value: Any, path: str) -> bool:
        """Return the value."""
        if not isinstance(value, bool):
            wrong(path, "true or false", value)
        return value

    def schema(self) -> Schema:
        """Return the JSON Schema."""
        return {"type": "boolean"}


@dataclass(frozen=True, slots=True)
class ListOf:
    """An array of `least` to `most` items of one kind."""

    item: Kind
    least: int = 0
    most: int = 2**31

    def check(self, value: Any, path: str) -> tuple[Any, ...]:
        """Return the items as a tuple."""
        if not isinstance(value, list):
            wrong(path, "an array", value)
        if not self.least <= len(value) <= self.most:
            wrong(path, f"an array of {self._count()}", Told(f"{len(value)} items"))
        return tuple(self.item.check(each, f"{path}[{place}]") for place, each in enumerate(value))

    def _count(self) -> str:
        if self.least == self.most:
            return f"{self.least} item{'' if self.least == 1 else 's'}"
        return (
            f"at least {self.least} items"
            if self.most > 2**30
            else f"{self.least} to {self.most} items"
        )

    def schema(self) -> Schema:
        """Return the JSON Schema."""
        made: Schema = {"type": "array", "items": self.item.schema()}
        made |= {"minItems": self.least} if self.least else {}
        return made | ({"maxItems": self.most} if self.most < 2**31 else {})


@dataclass(frozen=True, slots=True)
class Numbers:
    """Finite numbers in arrays that may nest: checked in one go, as there may be many."""

    nested: bool = False

    def check(self, value: Any, path: str) -> list[Any]:
        """Return the arrays as they are; each number is finite and a float32 holds it."""
        if not isinstance(value, list):
            wrong(path, "an array of numbers", value)
        for place, each in enumerate(value):
            if type(each) in (int, float) and abs(each) <= FLOAT32_MOST:
                continue
            if self.nested and isinstance(each, list):
                self.check(each, f"{path}[{place}]")
            else:
                wrong(f"{path}[{place}]", "a finite number", each)
        return value

    def schema(self) -> Schema:
        """Return the JSON Schema."""
        number = Number().schema()
        if not self.nested:
            return {"type": "array", "items": number}
        inner: Schema = {"anyOf": [number, {"type": "array"}]}
        return {"type": "array", "items": inner}


@dataclass(frozen=True, slots=True)
class AnyOf:
    """A value of the first kind that accepts it; `words` tell what is expected."""

    kinds: tuple[Kind, ...]
    words: str

    def check(self, value: Any, path: str) -> Any:
        """Return what the first fitting kind makes of the value."""
        inner = None
        for kind in self.kinds:
            try:
                return kind.check(value, path)
            except InvalidArgumentError as error:
                # A fault further down tells more than that no kind fits.
                inner = inner or (None if str(error).startswith(f"{path}: ") else error)
        if inner is not None:
            raise inner
        wrong(path, self.words, value)

    def schema(self) -> Schema:
        """Return the JSON Schema."""
        return {"anyOf": [kind.schema() for kind in self.kinds]}


@dataclass(frozen=True, slots=True)
class Null:
    """No value: null."""

    def check(self, value: Any, path: str) -> None:
        """Return None."""
        if value is not None:
            wrong(path, "null", value)

    def schema(self) -> Schema:
        """Return the JSON Schema."""
        return {"type": "null"}


@dataclass(frozen=True, slots=True)
class Field:
    """One key of an object: required unless it has a default (absent keys are then filled in)."""

    name: str
    kind: Kind
    doc: str = ""
    required: bool = True
    default: Any = None

    def schema(self) -> Schema:
        """Return the JSON Schema."""
        made = self.kind.schema()
        if self.doc and "$ref" not in made:
            made = {"description": self.doc, **made}
        return made


def optional(name: str, kind: Kind, doc: str = "", default: Any = None) -> Field:
    """Return a field that may be left out."""
    return Field(name, kind, doc, False, default)


@dataclass(frozen=True, slots=True)
class Record:
    """An object with these fields and no others."""

    fields: tuple[Field, ...]
    what: str = "an object"

    def check(self, value: Any, path: str) -> dict[str, Any]:
        """Return the values of all fields, defaults filled in."""
        if not isinstance(value, dict):
            wrong(path, self.what, value)
        known = [field.name for field in self.fields]
        for key in value:
            if key not in known:
                hint = _close(key, known) or f"it has {', '.join(known)}"
                wrong(joined(path, key), "no such key", value[key], hint)
        return {field.name: self._value(field, value, path) for field in self.fields}

    def _value(self, field: Field, value: Mapping[str, Any], path: str) -> Any:
        place = joined(path, field.name)
        if field.name in value:
            return field.kind.check(value[field.name], place)
        if field.required:
            wrong(place, f"a value ({field.doc})" if field.doc else "a value", NOTHING, "add it")
        return field.default

    def schema(self) -> Schema:
        """Return the JSON Schema."""
        made: Schema = {
            "type": "object",
            "properties": {field.name: field.schema() for field in self.fields},
            "additionalProperties": False,
        }
        required = [field.name for field in self.fields if field.required]
        return made | ({"required": required} if required else {})


@dataclass(frozen=True, slots=True)
class Tagged:
    """An object whose `kind` chooses its other fields."""

    variants: Mapping[str, tuple[Field, ...]]
    common: tuple[Field, ...] = ()
    docs: Mapping[str, str] | None = None

    def check(self, value: Any, path: str) -> dict[str, Any]:
        """Return the values of all fields, `kind` among them."""
        if not isinstance(value, dict):
            wrong(path, "an object with a kind", value)
        names = tuple(self.variants)
        if "kind" not in value:
            wrong(joined(path, "kind"), _one_of(names), NOTHING, "add it")
        kind = Choice(names).check(value["kind"], joined(path, "kind"))
        return self._record(kind).check(value, path)

    def _record(self, kind: str) -> Record:
        return Record((Field("kind", Choice((kind,))), *self.common, *self.variants[kind]))

    def schema(self) -> Schema:
        """Return the JSON Schema."""
        if len(self.variants) == 1:
            return self._record(next(iter(self.variants))).schema()
        return {"oneOf": [self._variant(kind) for kind in self.variants]}

    def _variant(self, kind: str) -> Schema:
        made = self._record(kind).schema()
        doc = (self.docs or {}).get(kind)
        return {"description": doc, **made} if doc else made


@dataclass(frozen=True, slots=True)
class Named:
    """A kind that the schema writes once, under `$defs`; it may hold itself."""

    name: str
    make: Callable[[], Kind]

    def check(self, value: Any, path: str) -> Any:
        """Return what the kind makes of the value."""
        return self.make().check(value, path)

    def schema(self) -> Schema:
        """Return the reference."""
        return {"$ref": f"#/$defs/{self.name}"}


@dataclass(frozen=True, slots=True)
class MapOf:
    """An object of free keys, each a value of one kind."""

    item: Kind

    def check(self, value: Any, path: str) -> dict[str, Any]:
        """Return the values by key."""
        if not isinstance(value, dict):
            wrong(path, "an object", value)
        return {key: self.item.check(each, joined(path, key)) for key, each in value.items()}

    def schema(self) -> Schema:
        """Return the JSON Schema."""
        return {"type": "object", "additionalProperties": self.item.schema()}
