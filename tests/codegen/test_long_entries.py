"""Long entries are cut into functions of bounded length; a part does what it did in the whole."""

from __future__ import annotations

import re

import numpy as np
import pytest

import frame
from frame import ops
from frame.codegen.emit.llvm.entry import PART_STATEMENTS
from frame.core.errors import InvalidArgumentError
from frame.ops.interpreter import interpret

COUNT = 3 * PART_STATEMENTS
ROWS = frame.spec((4, 3))


def longest_function(text: str) -> int:
    """Return the most launches that one function of the module makes."""
    return max(body.count("call void %launch(") for body in re.split(r"^define ", text, flags=re.M))


def flips(x, count: int):
    """A chain of `count` groups, none of which fuses with the next."""
    for axis in range(count):
        x = ops.flip(x, axis % 2) + 1.0
    return x


def parts_of(text: str) -> int:
    return len(set(re.findall(r"define internal i64 @(\S+\.part\.\d+)\(", text)))


def test_functions_of_an_entry_are_bounded():
    text = frame.compile(frame.trace(lambda x: flips(x, COUNT), ROWS)).source()["llvm"]
    assert longest_function(text) <= PART_STATEMENTS
    assert parts_of(text) == 3


def test_a_short_entry_is_one_function():
    text = frame.compile(frame.trace(lambda x: flips(x, 20), ROWS)).source()["llvm"]
    assert parts_of(text) == 0


def nested(x):
    """A scan in a scan, both with long bodies that read the loops' variables, and a long branch."""

    def inner(carry, row):
        return flips(carry, COUNT // 2) * 0.5 + row, ops.sum(carry)

    def outer(carry, rows):
        carry, sums = ops.scan(inner, flips(carry, COUNT // 2), rows)
        return carry * 0.5, sums

    large = ops.cond(ops.sum(x) > 0.0, lambda: flips(x, COUNT), lambda: flips(x, COUNT + 1))
    return ops.scan(outer, large, ops.stack([ops.stack([x, x * 2.0]), ops.stack([x, x])]))


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_parts_know_the_loops_around_them(sign):
    x = np.arange(12, dtype=np.float32).reshape(4, 3) * np.float32(sign)
    traced = frame.trace(nested, ROWS)
    model = frame.compile(traced)
    assert longest_function(model.source()["llvm"]) <= PART_STATEMENTS
    for got, wanted in zip(model(x), interpret(traced, [x]), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5)


def test_a_failed_check_leaves_every_function_before_the_state_changes():
    """The checks come before any launch that writes state, in a part of their own."""

    def step(table, rows):
        late = ops.gather(table, rows)
        return flips(table, COUNT), flips(late, COUNT)

    model = frame.compile(frame.trace(step, ROWS, frame.spec((2,), "int64")))
    table = np.ones((4, 3), np.float32)
    with pytest.raises(InvalidArgumentError, match="gather"):
        model(table, np.array([0, 4]))
    first, second = model(table, np.array([0, 3]))
    np.testing.assert_allclose(first, COUNT + 1)
    np.testing.assert_allclose(second, COUNT + 1)
