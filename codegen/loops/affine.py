"""Affine analysis of index expressions: linear forms, and what loops say about their ranges.

Index arithmetic is assumed not to overflow: extents, strides and offsets of real memory are far
below 2**63.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from frame.codegen.loops.ir import (
    INDEX,
    Binary,
    BinaryOp,
    Bitcast,
    Block,
    Broadcast,
    Cast,
    Compare,
    Const,
    Expr,
    Extract,
    For,
    Let,
    Load,
    Ramp,
    Reduce,
    Shuffle,
    Unary,
    UnaryOp,
    Var,
)
from frame.codegen.loops.traverse import fold_dag, nested, post_order
from frame.core.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class LinearForm:
    """`sum(coefficient * atom) + constant`. Atoms are variables or opaque index expressions.

    Equal opaque expressions are one atom where one `Facts` made the forms.
    """

    terms: Mapping[Expr, int]
    constant: int = 0

    def coefficient(self, atom: Expr) -> int:
        """Return the coefficient of an atom, 0 where it does not occur."""
        return self.terms.get(atom, 0)

    @property
    def is_constant(self) -> bool:
        """True where no atom occurs."""
        return not self.terms

    def plus(self, other: LinearForm, factor: int = 1) -> LinearForm:
        """Return `self + factor * other`."""
        if factor == 0 or (not other.terms and other.constant == 0):
            return self
        terms = dict(self.terms)
        for atom, coefficient in other.terms.items():
            total = terms.pop(atom, 0) + factor * coefficient
            if total:
                terms[atom] = total
        return LinearForm(terms, self.constant + factor * other.constant)

    def times(self, factor: int) -> LinearForm:
        """Return `factor * self`."""
        return ZERO.plus(self, factor)

    def without(self, atom: Expr) -> LinearForm:
        """Return the form without the term of an atom."""
        return LinearForm({k: v for k, v in self.terms.items() if k is not atom}, self.constant)

    def divisible(self, divisor: int) -> bool:
        """Tell whether every coefficient and the constant are multiples of a divisor."""
        return math.gcd(self.constant, *self.terms.values()) % divisor == 0


ZERO = LinearForm({})

# Effort: replacements in a row, minima looked at from both sides, rules inside rules.
_STEPS, _CHOICES, _DEPTH = 64, 3, 4


def linear_form(expression: Expr) -> LinearForm:
    """Return the linear form of a scalar index expression."""
    return Facts().form(expression)


class Facts:
    """What is known where a statement stands: extents of the loops around it and values of Lets.

    `form` expands the Lets that were defined; `upper` and `lower` replace loop variables,
    quotients, remainders and minima by their bounds.
    """

    def __init__(self) -> None:
        self.extents: dict[Var, LinearForm] = {}
        self.at_least: dict[Expr, int] = {}
        self._forms: dict[Expr, LinearForm] = {}
        self._atoms: dict[tuple[Any, ...], Expr] = {}
        self._canonical: dict[Expr, Expr] = {}
        self._reads: dict[Expr, bool] = {}
        self._depth = 0

    def enter(self, var: Var, extent: Expr) -> None:
        """Say that `var` runs over `0 .. extent - 1`: true of every place that can use `var`."""
        self.extents[var] = self.form(extent)

    def define(self, var: Var, value: Expr) -> None:
        """Say that a Let binds a variable; nothing is learnt from a value that reads memory."""
        if var.type == INDEX and var not in self._forms and not self.reads(value):
            self._forms[var] = self.form(value)

    def learn(self, block: Block) -> None:
        """Enter every loop and define every Let of a block and of the blocks inside it."""
        for statement in block:
            if isinstance(statement, Let):
                self.define(statement.var, statement.value)
            elif isinstance(statement, For):
                self.enter(statement.var, statement.extent)
            for inner in nested(statement):
                self.learn(inner)

    def suppose(self, form: LinearForm, value: int) -> None:
        """Say that a form is at least `value` here (inside a loop, its extent is at least 1)."""
        if len(form.terms) != 1:
            return
        ((atom, factor),) = form.terms.items()
        if factor < 0:
            return
        least = -((form.constant - value) // factor)
        self.at_least[atom] = max(least, self.at_least.get(atom, least))
        if isinstance(atom, Binary) and least >= 1:
            self._suppose_operands(atom, least)

    def _suppose_operands(self, atom: Binary, least: int) -> None:
        divisor = _positive_divisor(atom)
        if atom.op is BinaryOp.DIV and divisor:
            self.suppose(self.form(atom.a), least * divisor)
        elif atom.op is BinaryOp.MIN:
            self.suppose(self.form(atom.a), least)
            self.suppose(self.form(atom.b), least)

    def reads(self, expression: Expr) -> bool:
        """Tell whether an expression reads memory."""
        return fold_dag(
            expression, self._reads, lambda node, args: isinstance(node, Load) or any(args)
        )

    def is_natural(self, expression: Expr) -> bool:
        """Tell whether an index expression is known to be at least 0."""
        least = self.minimum(expression)
        return least is not None and least >= 0

    # Forms

    def form(self, expression: Expr) -> LinearForm:
        """Return the linear form of a scalar index expression."""
        return fold_dag(expression, self._forms, self._visit)

    def _visit(self, node: Expr, args: list[LinearForm]) -> LinearForm:
        if node.type == INDEX and isinstance(node, Const):
            return LinearForm({}, int(node.value))
        found = None
        if node.type == INDEX and isinstance(node, (Unary, Binary)):
            rule = _FORM_RULES.get(node.op)
            found = rule(*args) if rule is not None else None
        return LinearForm({self.canonical(node): 1}) if found is None else found

    def canonical(self, node: Expr) -> Expr:
        """Return the one atom that stands for all expressions equal to this one."""
        return fold_dag(node, self._canonical, self._intern)

    def _intern(self, node: Expr, args: list[Expr]) -> Expr:
        if isinstance(node, (Var, Load)):
            return node  # a Load may see other memory elsewhere: it equals itself alone
        return self._atoms.setdefault((structure(node), *map(id, args)), node)

    # Bounds

    def upper(self, form: LinearForm) -> LinearForm:
        """Return a form that is never less, with as few atoms as the facts allow."""
        return self._extreme(form)

    def lower(self, form: LinearForm) -> LinearForm:
        """Return a form that is never greater, with as few atoms as the facts allow."""
        return self._extreme(form.times(-1)).times(-1)

    def _extreme(self, form: LinearForm, choices: int = _CHOICES) -> LinearForm:
        """Return the least upper bound of a form that a few steps of replacing atoms find."""
        for _ in range(_STEPS):  # each step removes an atom in favour of outer ones
            step = self._step(form)
            if step is None:
                break
            if len(step) > 1 and choices > 0:
                return _least([self._extreme(each, choices - 1) for each in step])
            form = step[0]
        return self._close(form)

    def _step(self, form: LinearForm) -> list[LinearForm] | None:
        """Replace one atom by its bounds (a minimum has two), None where no atom has any."""
        for atom, coefficient in reversed([*form.terms.items()]):
            bounds = self._bounds(atom, coefficient)
            if bounds:
                rest = form.without(atom)
                return [rest.plus(bound) for bound in bounds]
        return None

    def _close(self, form: LinearForm) -> LinearForm:
        """Replace what is left by the least values that were supposed."""
        for atom, coefficient in form.terms.items():
            if coefficient < 0 and atom in self.at_least:
                form = form.without(atom).plus(LinearForm({}, coefficient * self.at_least[atom]))
        return form

    def _bounds(self, atom: Expr, coefficient: int) -> Sequence[LinearForm]:
        """Return forms that are at least `coefficient * atom` each."""
        if isinstance(atom, Var):
            return self._loop_bounds(atom, coefficient)
        rule = _BOUND_RULES.get(atom.op) if isinstance(atom, Binary) else None
        if rule is None or self._depth >= _DEPTH:
            return ()
        self._depth += 1
        found = rule(self, atom, coefficient)
        self._depth -= 1
        return found

    def _loop_bounds(self, var: Var, coefficient: int) -> Sequence[LinearForm]:
        extent = self.extents.get(var)
        if extent is None:
            return ()
        return (extent.plus(LinearForm({}, -1)).times(coefficient) if coefficient > 0 else ZERO,)

    def maximum(self, expression: Expr) -> int | None:
        """Return the greatest value that an index expression can have, None if unknown."""
        bound = self.upper(self.form(expression))
        return bound.constant if bound.is_constant else None

    def minimum(self, expression: Expr) -> int | None:
        """Return the least value that an index expression can have, None if unknown."""
        bound = self.lower(self.form(expression))
        return bound.constant if bound.is_constant else None

    def difference(self, a: Expr, b: Expr) -> tuple[int | None, int | None]:
        """Return the least and the greatest value of `a - b`, None where unknown."""
        form = self.form(a).plus(self.form(b), -1)
        low, high = self.lower(form), self.upper(form)
        return (
            low.constant if low.is_constant else None,
            high.constant if high.is_constant else None,
        )


def structure(node: Expr) -> tuple[Any, ...]:
    """Return what an expression is besides its operands.

    Equal structures on equal operands compute equal values, but for Loads: they read at their time.
    """
    extra = _STRUCTURE.get(type(node))
    return (type(node), node.type, *(() if extra is None else extra(node)))


_STRUCTURE: Mapping[type[Expr], Callable[[Any], tuple[Any, ...]]] = {
    Const: lambda e: (
        (type(e.value), float(e.value).hex() if e.value == e.value else "nan")
        if isinstance(e.value, float)
        else (type(e.value), e.value)
    ),
    Var: lambda e: (id(e),),
    Unary: lambda e: (e.op,),
    Binary: lambda e: (e.op,),
    Compare: lambda e: (e.op,),
    Cast: lambda e: (),
    Bitcast: lambda e: (),
    Broadcast: lambda e: (),
    Ramp: lambda e: (),
    Shuffle: lambda e: (e.pattern,),
    Extract: lambda e: (e.lane,),
    Reduce: lambda e: (e.op,),
    Load: lambda e: (id(e.buffer), e.mask is not None),
}


def _multiply(a: LinearForm, b: LinearForm) -> LinearForm | None:
    if b.is_constant:
        return a.times(b.constant)
    return b.times(a.constant) if a.is_constant else None


def _shift_left(a: LinearForm, b: LinearForm) -> LinearForm | None:
    return a.times(1 << b.constant) if b.is_constant and 0 <= b.constant < 62 else None


_FORM_RULES: Mapping[Any, Callable[..., LinearForm | None]] = {
    BinaryOp.ADD: lambda a, b: a.plus(b),
    BinaryOp.SUB: lambda a, b: a.plus(b, -1),
    BinaryOp.MUL: _multiply,
    BinaryOp.SHL: _shift_left,
    UnaryOp.NEG: lambda a: a.times(-1),
}


def _positive_divisor(atom: Expr) -> int:
    divisor = atom.args[1]
    return max(0, int(divisor.value)) if isinstance(divisor, Const) else 0


def _quotient_bound(facts: Facts, atom: Expr, coefficient: int) -> Sequence[LinearForm]:
    """`x - (c - 1) <= c * (x / c) <= x` for x >= 0."""
    numerator, divisor = atom.args[0], _positive_divisor(atom)
    if divisor == 0 or not facts.is_natural(numerator):
        return ()
    if coefficient % divisor:
        bound = facts.maximum(numerator) if coefficient > 0 else facts.minimum(numerator)
        return () if bound is None else (LinearForm({}, coefficient * (max(bound, 0) // divisor)),)
    form = facts.form(numerator)
    if coefficient < 0:
        form = form.plus(LinearForm({}, 1 - divisor))
    return (form.times(coefficient // divisor),)


def _remainder_bound(facts: Facts, atom: Expr, coefficient: int) -> Sequence[LinearForm]:
    divisor = _positive_divisor(atom)
    if divisor == 0:
        return ()
    low = 0 if facts.is_natural(atom.args[0]) else 1 - divisor
    return (LinearForm({}, coefficient * (divisor - 1 if coefficient > 0 else low)),)


def _choice_bound(facts: Facts, atom: Expr, coefficient: int, above: bool) -> Sequence[LinearForm]:
    """A minimum is at most each operand, a maximum at least each; else the worse operand counts."""
    forms = [facts.form(x).times(coefficient) for x in atom.args]
    if (coefficient > 0) == above:
        return sorted(forms, key=lambda form: len(form.terms))
    sides = [facts.upper(form) for form in forms]
    if not all(side.is_constant for side in sides):
        return ()
    return (max(sides, key=lambda side: side.constant),)


def _least(forms: list[LinearForm]) -> LinearForm:
    """Return the least of the constant forms, any form where none is constant."""
    constant = [form for form in forms if form.is_constant]
    return min(constant, key=lambda form: form.constant) if constant else forms[0]


_BOUND_RULES: Mapping[BinaryOp, Callable[[Facts, Expr, int], Sequence[LinearForm]]] = {
    BinaryOp.DIV: _quotient_bound,
    BinaryOp.REM: _remainder_bound,
    BinaryOp.MIN: lambda f, atom, c: _choice_bound(f, atom, c, above=True),
    BinaryOp.MAX: lambda f, atom, c: _choice_bound(f, atom, c, above=False),
}


def variables(expressions: Iterable[Expr]) -> set[Var]:
    """Return the variables that expressions use."""
    return {node for node in post_order(expressions) if isinstance(node, Var)}
