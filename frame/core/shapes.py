"""Sizes and shapes.

A size is an int or a `Dim`: a polynomial with integer coefficients over named symbols, kept in a
normal form, so that two sizes known to be equal compare equal. A Dim is never constant: arithmetic
whose result has no symbol returns an int.
"""

from __future__ import annotations

import functools
import math
import numbers
import operator
import re
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from typing import Any, ClassVar, NoReturn, SupportsIndex, TypeAlias, cast

from frame.core.dataclass import dataclass
from frame.core.errors import InvalidArgumentError, NotFoundError

MAX_NUMEL = 2**62
"""No tensor has more elements; a product of sizes above it is an error, never a wrap-around."""

MAX_RANK = 64
"""No tensor has more dimensions: numpy has no arrays to call it with."""

_MAX_TERMS = 256
_SYMBOL = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}", re.ASCII)

Monomial: TypeAlias = tuple[str, ...]


@dataclass(frozen=True, slots=True, repr=False)
class Dim:
    """A symbolic size: a sum of integer x product of symbols, in normal form.

    `terms` holds (monomial, coefficient) pairs: a monomial is the sorted tuple of its symbols (the
    empty one is the constant), the higher degree comes first. Build one with `Dim.symbol` and
    arithmetic or with `parse_dim`.
    """

    terms: tuple[tuple[Monomial, int], ...]

    # numpy scalars on the left then leave the operation to Dim.
    __array_ufunc__: ClassVar[None] = None

    def __post_init__(self) -> None:
        if self.terms != _normal(dict(self.terms)) or not self.symbols:
            raise InvalidArgumentError(
                f"expected the normal form of a size with a symbol, received {self.terms!r}"
            )

    @classmethod
    def symbol(cls, name: str) -> Dim:
        """Return the size that `name` stands for.

        Raises:
            InvalidArgumentError: the name is not 1 to 64 letters, digits or underscores, or it
                starts with a digit.
        """
        if not isinstance(name, str) or not _SYMBOL.fullmatch(name):
            raise InvalidArgumentError(
                "expected a symbol of 1 to 64 letters, digits and underscores that does not "
                f"start with a digit, received {name!r}"
            )
        return cls((((name,), 1),))

    @property
    def symbols(self) -> frozenset[str]:
        """The names of the symbols in this size."""
        return frozenset(name for monomial, _ in self.terms for name in monomial)

    def evaluate(self, bindings: Mapping[str, int]) -> int:
        """Return the value under `bindings`; it may be negative.

        Raises:
            NotFoundError: a symbol has no binding.
        """
        missing = sorted(self.symbols - bindings.keys())
        if missing:
            raise NotFoundError(
                f"size {self} needs a value of {', '.join(missing)}; "
                f"known symbols: {', '.join(sorted(bindings)) or 'none'}"
            )
        return sum(
            coefficient * math.prod(int(bindings[name]) for name in monomial)
            for monomial, coefficient in self.terms
        )

    def __add__(self, other: object) -> Size:
        return _combine(self, other, 1)

    def __radd__(self, other: object) -> Size:
        return _combine(self, other, 1)

    def __sub__(self, other: object) -> Size:
        return _combine(self, other, -1)

    def __rsub__(self, other: object) -> Size:
        return (-self) + other

    def __neg__(self) -> Dim:
        return Dim(tuple((monomial, -coefficient) for monomial, coefficient in self.terms))

    def __mul__(self, other: object) -> Size:
        terms = _terms_of(other)
        if terms is None:
            return NotImplemented
        return _from_terms(_multiply(dict(self.terms), terms))

    def __rmul__(self, other: object) -> Size:
        return self.__mul__(other)

    def __floordiv__(self, other: object) -> Size:
        return _divide(self, other)

    def __rfloordiv__(self, other: object) -> Size:
        return _divide(other, self)

    def __lt__(self, other: object) -> bool:
        return _no_order(self, other)

    def __le__(self, other: object) -> bool:
        return _no_order(self, other)

    def __gt__(self, other: object) -> bool:
        return _no_order(self, other)

    def __ge__(self, other: object) -> bool:
        return _no_order(self, other)

    def __bool__(self) -> bool:
        raise InvalidArgumentError(
            f"size {self} is symbolic, so whether it is zero is not known before it is bound; "
            "compare it with == or ask isinstance(size, int) first"
        )

    def __str__(self) -> str:
        text = "".join(_term_text(*term) for term in self.terms)
        return text[3:] if text.startswith(" + ") else "-" + text[3:]

    def __repr__(self) -> str:
        return f"parse_dim({str(self)!r})"


Size: TypeAlias = int | Dim
Shape: TypeAlias = tuple[Size, ...]

# What an operator returns to let the other operand try.
_DEFER = cast("Size", NotImplemented)


# --- polynomial arithmetic on {monomial: coefficient} ---------------------------------------------


def _order(monomial: Monomial) -> tuple[int, Monomial]:
    # Graded lexicographic: compatible with multiplication, which exact division relies on.
    return (-len(monomial), monomial)


def _normal(terms: Mapping[Monomial, int]) -> tuple[tuple[Monomial, int], ...]:
    kept = [(tuple(sorted(monomial)), c) for monomial, c in terms.items() if c != 0]
    return tuple(sorted(kept, key=lambda term: _order(term[0])))


def _from_terms(terms: Mapping[Monomial, int]) -> Size:
    normal = _normal(terms)
    if not normal:
        return 0
    if len(normal) == 1 and normal[0][0] == ():
        return normal[0][1]
    if len(normal) > _MAX_TERMS:
        raise InvalidArgumentError(
            f"expected a size of at most {_MAX_TERMS} terms, received one of {len(normal)}"
        )
    return Dim(normal)


def _terms_of(value: object) -> dict[Monomial, int] | None:
    if isinstance(value, Dim):
        return dict(value.terms)
    number = _plain_integer(value)
    return None if number is None else {(): number}


def _plain_integer(value: object) -> int | None:
    """Return a Python or numpy integer as int, or None for anything else (bool included)."""
    if type(value) is int:  # by far the most common case; the protocol check below is slow
        return value
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def is_count(value: Any, least: int, kind: Any = numbers.Integral) -> bool:
    """Whether a value is an integer, no bool, of at least `least`; kind=int excludes numpy's."""
    return isinstance(value, kind) and not isinstance(value, bool) and bool(value >= least)


def _combine(left: Dim, right: object, sign: int) -> Size:
    terms = _terms_of(right)
    if terms is None:
        return _DEFER
    total = dict(left.terms)
    for monomial, coefficient in terms.items():
        total[monomial] = total.get(monomial, 0) + sign * coefficient
    return _from_terms(total)


def _multiply(left: Mapping[Monomial, int], right: Mapping[Monomial, int]) -> dict[Monomial, int]:
    product: dict[Monomial, int] = {}
    for a, x in left.items():
        for b, y in right.items():
            monomial = tuple(sorted(a + b))
            product[monomial] = product.get(monomial, 0) + x * y
    return product


def _divide(left: object, right: object) -> Size:
    """Divide polynomials exactly: cancel the leading term of the remainder until none is left."""
    remainder, divisor = _terms_of(left), _terms_of(right)
    if remainder is None or divisor is None:
        return _DEFER
    if divisor == {(): 0}:
        raise InvalidArgumentError(f"expected a divisor other than 0 for size {left}")
    quotient: dict[Monomial, int] = {}
    lead, lead_coefficient = _normal(divisor)[0]
    while terms := _normal(remainder):
        factor = _without(terms[0][0], lead)
        if factor is None or terms[0][1] % lead_coefficient:
            raise InvalidArgumentError(
                f"size {left} is not divisible by {right} for every value of its symbols"
            )
        quotient[factor] = terms[0][1] // lead_coefficient
        for monomial, coefficient in _multiply({factor: quotient[factor]}, divisor).items():
            remainder[monomial] = remainder.get(monomial, 0) - coefficient
    return _from_terms(quotient)


def _without(monomial: Monomial, factor: Monomial) -> Monomial | None:
    rest = list(monomial)
    for name in factor:
        if name not in rest:
            return None
        rest.remove(name)
    return tuple(rest)


def _no_order(left: Dim, right: object) -> NoReturn:
    raise InvalidArgumentError(
        f"sizes {left} and {right} can't be ordered: {left} is symbolic and has no value before "
        "it is bound"
    )


def _term_text(monomial: Monomial, coefficient: int) -> str:
    sign = " - " if coefficient < 0 else " + "
    size = abs(coefficient)
    factors = ([str(size)] if size != 1 or not monomial else []) + list(monomial)
    return sign + "*".join(factors)


# --- text -> size ---------------------------------------------------------------------------------

_TOKEN = r"\s*(?:([0-9]+)|([A-Za-z_][A-Za-z0-9_]*)|(//|[-+*()]))"
_MAX_TEXT = 4096
_MAX_NESTING = 32


def parse_dim(text: str) -> Size:
    """Return the size that a text such as `2*batch*seq + batch + 3` denotes.

    Besides the canonical text, parentheses and exact `//` are understood.

    Raises:
        InvalidArgumentError: the text is not a size.
    """
    if not isinstance(text, str) or len(text) > _MAX_TEXT:
        raise InvalidArgumentError(f"expected the text of a size, received {text!r:.80}")
    parser = _DimParser(text)
    size = parser.sum(0)
    parser.expect_end()
    return size


class _DimParser:
    """Recursive descent over: sum = product (+|- product)*, product = factor (*|// factor)*."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = self._scan()
        self._next = 0

    def _scan(self) -> list[str]:
        tokens, position, end = [], 0, len(self._text.rstrip())
        token = re.compile(_TOKEN, re.ASCII)
        while position < end:
            match = token.match(self._text, position)
            if match is None:
                self._fail(f"unexpected {self._text[position:].strip()[:1]!r}")
            tokens.append(match[0].strip())
            position = match.end()
        return tokens

    def _fail(self, problem: str) -> NoReturn:
        raise InvalidArgumentError(
            f"expected a size such as 'batch' or '2*batch + 3', received {self._text!r:.200}: "
            f"{problem}"
        )

    def _take(self, *allowed: str) -> str:
        token = self._tokens[self._next] if self._next < len(self._tokens) else ""
        if allowed and token not in allowed:
            return ""
        self._next += bool(token)
        return token

    def expect_end(self) -> None:
        """Refuse anything after the size."""
        token = self._take()
        if token:
            self._fail(f"unexpected {token!r}")

    def sum(self, nesting: int) -> Size:
        """Parse one sum."""
        total = -self._product(nesting) if self._take("-") else self._product(nesting)
        while sign := self._take("+", "-"):
            term = self._product(nesting)
            total = total + term if sign == "+" else total - term
        return total

    def _product(self, nesting: int) -> Size:
        total = self._factor(nesting)
        while sign := self._take("*", "//"):
            factor = self._factor(nesting)
            total = total * factor if sign == "*" else exact_divide(total, factor)
        return total

    def _factor(self, nesting: int) -> Size:
        token = self._take()
        if token == "(":
            if nesting >= _MAX_NESTING:
                self._fail(f"more than {_MAX_NESTING} levels of parentheses")
            inner = self.sum(nesting + 1)
            if not self._take(")"):
                self._fail("a ) is missing")
            return inner
        if token.isdigit():
            return int(token) if len(token) <= 19 else self._fail(f"{token:.30} is too large")
        if token and (token[0].isalpha() or token[0] == "_"):
            return Dim.symbol(token)
        self._fail(f"unexpected {token!r}" if token else "it ends too early")


# --- sizes and shapes -----------------------------------------------------------------------------


def exact_divide(left: Size, right: Size) -> Size:
    """Return left // right where right divides left exactly, for ints and Dims alike.

    Raises:
        InvalidArgumentError: right is 0 or does not divide left.
    """
    result = _divide(left, right)
    if result is _DEFER:
        raise InvalidArgumentError(f"expected two sizes to divide, received {left!r} and {right!r}")
    return result


def as_size(value: object) -> Size:
    """Return a size from an int, a numpy integer, a Dim or a text such as `batch` or `2*seq`.

    Raises:
        InvalidArgumentError: the value is none of these, negative, or above 2**62.
    """
    size = parse_dim(value) if isinstance(value, str) else value
    if isinstance(size, Dim):
        return size
    number = _plain_integer(size)
    if number is None or not 0 <= number <= MAX_NUMEL:
        raise InvalidArgumentError(
            f"expected a size (an integer from 0 to 2**62, or a symbol), received {value!r}"
        )
    return number


def as_shape(values: object) -> Shape:
    """Return a shape from one size or an iterable of sizes, each as `as_size` takes it.

    Raises:
        InvalidArgumentError: a size is not acceptable, or the product of the sizes overflows.
    """
    if isinstance(values, (str, Dim)) or _plain_integer(values) is not None:
        values = (values,)
    if not isinstance(values, Iterable):
        raise InvalidArgumentError(f"expected a shape (a tuple of sizes), received {values!r}")
    shape = tuple(as_size(value) for value in values)
    numel(shape)
    return shape


def known(size: Size) -> int:
    """Return a size that must be a number here; raise InvalidArgumentError for a symbolic one."""
    if isinstance(size, Dim):
        raise InvalidArgumentError(
            f"expected a size that is known, received the symbolic size {size}; give it a number"
        )
    return size


def shape_text(shape: Sequence[Size]) -> str:
    """Return `(2*batch, 784)`, the form in which messages show a shape."""
    inner = ", ".join(str(size) for size in shape)
    return f"({inner},)" if len(shape) == 1 else f"({inner})"


def numel(shape: Sequence[Size]) -> Size:
    """Return the number of elements.

    Raises:
        InvalidArgumentError: the number is above 2**62 (only checked where sizes are ints).
    """
    return _numel(tuple(shape))


@functools.lru_cache(maxsize=4096)
def _numel(shape: Shape) -> Size:
    constant = math.prod(size for size in shape if isinstance(size, int))
    # A zero size makes the tensor empty, yet the others must still be representable.
    largest = math.prod(size for size in shape if isinstance(size, int) and size != 0)
    if largest > MAX_NUMEL:
        raise InvalidArgumentError(
            f"shape {shape_text(shape)} has more than 2**62 elements; no memory can hold it"
        )
    total: Size = constant
    for size in shape:
        total = total * size if isinstance(size, Dim) else total
    return total


def shape_symbols(shape: Sequence[Size]) -> frozenset[str]:
    """Return the names of all symbols in a shape."""
    return frozenset().union(*(size.symbols for size in shape if isinstance(size, Dim)))


def bind_shape(shape: Sequence[Size], bindings: Mapping[str, int]) -> tuple[int, ...]:
    """Return the shape with every symbol replaced by its value.

    Raises:
        NotFoundError: a symbol has no value.
        InvalidArgumentError: a size becomes negative, or the product overflows.
    """
    bound = tuple(size if isinstance(size, int) else size.evaluate(bindings) for size in shape)
    if any(size < 0 for size in bound):
        values = ", ".join(f"{name}={value}" for name, value in sorted(bindings.items()))
        raise InvalidArgumentError(
            f"shape {shape_text(shape)} has a negative size: {shape_text(bound)} with {values}"
        )
    numel(bound)
    return bound


def match_shape(
    shape: Sequence[Size], actual: Sequence[int], bindings: MutableMapping[str, int]
) -> bool:
    """Tell whether `actual` is an instance of `shape`; on success add the solved symbols.

    A size with one unknown symbol, linear in it, is solved (`2*batch + 1` against 9 gives 4); all
    other sizes are checked against the bindings. On a mismatch `bindings` is left as it was.

    Raises:
        InvalidArgumentError: a symbol can't be solved from this shape and the bindings given.
    """
    return match_shapes([(shape, actual)], bindings)


def match_shapes(
    pairs: Iterable[tuple[Sequence[Size], Sequence[int]]], bindings: MutableMapping[str, int]
) -> bool:
    """Like `match_shape` for several shapes at once: a symbol may be solved from any of them."""
    solved = dict(bindings)
    pending: list[tuple[Size, int]] = []
    for shape, actual in pairs:
        if len(shape) != len(actual):
            return False
        pending.extend(zip(shape, (int(size) for size in actual), strict=True))
    while pending:
        later = []
        for size, value in pending:
            verdict = _solve(size, value, solved)
            if verdict is False:
                return False
            if verdict is None:
                later.append((size, value))
        if len(later) == len(pending):
            _fail_unsolved(later)
        pending = later
    bindings.update(solved)
    return True


def _solve(size: Size, value: int, bindings: dict[str, int]) -> bool | None:
    """Return True or False for a match or mismatch, None where more bindings are needed."""
    if isinstance(size, int):
        return size == value
    unknown = size.symbols - bindings.keys()
    if not unknown:
        return size.evaluate(bindings) == value
    if len(unknown) > 1:
        return None
    (name,) = unknown
    if any(monomial.count(name) > 1 for monomial, _ in size.terms):
        return None
    offset = size.evaluate({**bindings, name: 0})
    slope = size.evaluate({**bindings, name: 1}) - offset
    if slope == 0:
        return None if offset == value else False
    solution, rest = divmod(value - offset, slope)
    if rest or solution < 0:
        return False
    bindings[name] = solution
    return True


def _fail_unsolved(pending: Sequence[tuple[Size, int]]) -> NoReturn:
    equations = ", ".join(f"{size} = {value}" for size, value in pending)
    raise InvalidArgumentError(
        f"can't solve {equations}: give each symbol an input dimension that is that symbol alone"
    )


def broadcast_shapes(*shapes: Sequence[Size]) -> Shape:
    """Return the shape that numpy broadcasting gives; a Dim goes with 1 or an equal Dim only.

    Raises:
        InvalidArgumentError: two sizes do not broadcast.
    """
    rank = max((len(shape) for shape in shapes), default=0)
    result: list[Size] = [1] * rank
    for shape in shapes:
        for axis, size in enumerate(shape, start=rank - len(shape)):
            if result[axis] == 1:
                result[axis] = size
            elif size != 1 and size != result[axis]:
                raise InvalidArgumentError(
                    f"shapes {', '.join(map(shape_text, shapes))} do not broadcast: "
                    f"{result[axis]} and {size} at axis {axis - rank}"
                )
    return tuple(result)


def stands_beside(shape: Sequence[Size], full: Sequence[Size], reduced: Sequence[int]) -> bool:
    """Return whether broadcasting puts results of a reduction beside the elements they are of.

    `shape` is that of the results, `full` what was reduced over the axes `reduced`. Without these
    axes a result is lined up with others: the maxima (n,) of the rows of (n, n) with its columns.
    """
    if len(shape) > len(full):
        return False
    padded = (*(1 for _ in range(len(full) - len(shape))), *shape)
    return all(
        size == whole or (size == 1 and axis in reduced)
        for axis, (size, whole) in enumerate(zip(padded, full, strict=True))
    )


def normalize_axis(axis: int, rank: int) -> int:
    """Return `axis` counted from the front, in [0, rank).

    Raises:
        InvalidArgumentError: the axis is not an integer in [-rank, rank).
    """
    number = _plain_integer(axis)
    if number is None or not -rank <= number < rank:
        allowed = f"from {-rank} to {rank - 1}" if rank else "of a tensor with axes (rank 0 here)"
        raise InvalidArgumentError(f"expected an axis {allowed}, received {axis!r}")
    return number % rank


def normalize_axes(axes: int | Iterable[int] | None, rank: int) -> tuple[int, ...]:
    """Return axes counted from the front, in the order given; None means all of them.

    Raises:
        InvalidArgumentError: an axis is out of range or named twice.
    """
    if axes is None:
        return tuple(range(rank))
    given: Any = axes if isinstance(axes, Iterable) else (axes,)
    result = tuple(normalize_axis(axis, rank) for axis in given)
    if len(set(result)) != len(result):
        raise InvalidArgumentError(f"expected each axis once, received {axes!r} for rank {rank}")
    return result


def row_major_strides(shape: Sequence[Size]) -> Shape:
    """Return the strides, in elements, of a dense row-major tensor."""
    strides: list[Size] = []
    step: Size = 1
    for size in reversed(shape):
        strides.append(step)
        step = step * size
    return tuple(reversed(strides))
