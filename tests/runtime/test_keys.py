"""What enters a key: all that decides the code, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

import frame
from frame import nn, ops
from frame.codegen import register_scalar_rule, unregister_scalar_rule
from frame.codegen.loops import builder as b
from frame.codegen.loops.ir import Expr
from frame.core import config
from frame.core.dtypes import float32
from frame.core.errors import AlreadyExistsError, NotFoundError
from frame.core.fingerprint import Fingerprint
from frame.ir.graph import TensorType
from frame.ops.record import NoGradient, OpDef, Operand, Sample, Trait
from frame.ops.registry import register, unregister
from frame.runtime import loading
from frame.runtime.cache import Cache
from frame.runtime.loading import Declared, key_of, load
from tests.runtime.support import add_relu, forget_programs, model, numbers, watched


def _key(function=add_relu, **options) -> str:
    graph = frame.trace(function, *([frame.spec((2, 3))] * 2))
    return key_of(Declared(graph, **options)).text


def test_known_30_two_instances_of_a_module_share_their_code() -> None:
    first, second = (
        frame.compile(
            nn.Sequential("m", [nn.Linear(4, 3), nn.ReLU()]), [frame.spec((2, 4))], seed=s
        )
        for s in (0, 1)
    )
    assert first.entry("infer").loaded.run is second.entry("infer").loaded.run
    x = numbers(2, 4)
    assert not np.array_equal(first(x), second(x))  # weights are arguments


def test_equal_declarations_have_one_key_and_others_do_not() -> None:
    assert _key() == _key(lambda x, y: ops.relu(x * 2.0 + y))
    keys = {
        _key(),
        _key(lambda x, y: ops.relu(x * 3.0 + y)),
        _key(passes="without layout_assignment"),
        _key(options={"level": 1}),
        _key(target=frame.runtime.backend("cpu").target("x86-64-v2")),
    }
    assert len(keys) == 5


def test_a_forced_grain_makes_code_of_its_own() -> None:
    plain = _key()
    with config.override(FRAME_GRAIN="1"):
        one = _key()
    with config.override(FRAME_GRAIN="2"):
        assert len({plain, one, _key()}) == 3
    assert _key() == plain


def test_known_11_the_body_of_a_helper_counts() -> None:
    factor = {"value": 2.0}

    def helper(x):
        return x * factor["value"]

    def user(x, y):
        return helper(x) + y

    before = _key(user)
    assert _key(user) == before
    factor["value"] = 4.0
    assert _key(user) != before


def _record(factor: float) -> OpDef:
    return OpDef(
        name="scaled_by_user",
        doc="Scale.",
        operands=(Operand("x", kinds=("float",)),),
        infer=lambda types, attributes: types[0],
        reference=lambda operands, attributes: operands[0] * factor,
        gradient=NoGradient("a test"),
        decomposition=lambda operands, attributes: operands[0] * factor,
    )


@pytest.fixture
def user_op():
    registered = []

    def register(factor: float) -> None:
        for name in registered:
            ops.unregister(name)
        registered[:] = [ops.register(_record(factor)).name]

    yield register
    for name in registered:
        ops.unregister(name)


def test_known_11_the_code_of_a_users_op_counts(user_op) -> None:
    x = numbers(2, 3)
    for factor in (2.0, 5.0, 2.0):
        user_op(factor)
        forget_programs()
        np.testing.assert_array_equal(
            model(lambda x: ops.scaled_by_user(x), (2, 3), 1)(x), x * np.float32(factor)
        )
    with watched() as seen:
        forget_programs()
        model(lambda x: ops.scaled_by_user(x), (2, 3), 1)
    assert seen.stats.passes == 0


def test_an_op_of_the_user_does_not_change_the_keys_of_other_graphs(user_op) -> None:
    before = _key()
    user_op(3.0)
    assert _key() == before


@dataclass(frozen=True)
class _Named:
    name: ClassVar[str] = "users_pass"

    def run(self, graph, context):
        return graph


def test_the_code_of_a_users_pass_counts() -> None:
    @dataclass(frozen=True)
    class _Other:
        name: ClassVar[str] = "users_pass"

        def run(self, graph, context):
            context.count("seen")
            return graph

    assert _key(passes=(_Named(),)) == _key(passes=(_Named(),))
    assert _key(passes=(_Named(),)) != _key(passes=(_Other(),))


def test_code_that_can_not_be_hashed_stays_in_memory(user_op, cache_folder) -> None:
    class Opaque:
        __slots__ = ()

        def __call__(self, operands, attributes):
            return operands[0] * 1.0

    record = _record(1.0)
    opaque = Opaque()
    made = OpDef(
        **{
            **{name: getattr(record, name) for name in record.__slots__},
            "name": "opaque_by_user",
            "reference": opaque,
        }
    )
    ops.register(made)
    try:
        found = model(lambda x: ops.opaque_by_user(x), (2, 3), 1)
        assert key_of(found.entry("infer").declared).held == (opaque,)
        manifests = list(cache_folder.rglob("manifest/*/*"))
        assert manifests == []
        with watched() as seen:
            model(lambda x: ops.opaque_by_user(x), (2, 3), 1)
        assert seen.stats.passes == 0
    finally:
        ops.unregister("opaque_by_user")


def _print_of(thing: object) -> str:
    made = Fingerprint()
    made.add(thing)
    assert made.exact
    return made.text()


def test_fingerprints_see_constants_defaults_closures_and_callees() -> None:
    def make(value, default):
        def inner(x, y=default):
            return helper(x) + value + 1

        return inner

    def helper(x):
        return x

    base = _print_of(make(1, 2))
    assert _print_of(make(1, 2)) == base
    assert len({base, _print_of(make(3, 2)), _print_of(make(1, 4))}) == 3
    assert _print_of(lambda: 1) != _print_of(lambda: 2)
    assert _print_of(lambda: (1, "a")) != _print_of(lambda: (1, "b"))
    assert _print_of(np.arange(3)) != _print_of(np.arange(4))
    assert _print_of({"a": 1}) != _print_of({"a": 2})
    assert _print_of(TensorType(float32, (2,))) != _print_of(TensorType(float32, (3,)))


def test_fingerprints_end_on_things_that_hold_themselves() -> None:
    loop: list = []
    loop.append(loop)
    assert _print_of(loop)

    def recursive(n):
        return recursive(n - 1) if n else 0

    assert _print_of(recursive)


def test_programs_are_freed_with_their_models() -> None:
    import gc

    made = model()
    assert len(loading._in_use) >= 1
    key = next(iter(loading._in_use))
    del made
    gc.collect()
    assert key not in loading._in_use


def _signed(scale: float) -> Callable[..., Expr]:
    def rule(context: object, x: Expr) -> Expr:
        return b.mul(x, b.like(scale, x))

    return rule


def _negated(context: object, x: Expr) -> Expr:
    return b.neg(x)


@pytest.mark.parametrize("changed", [_signed(3.0), _negated])
def test_a_changed_scalar_rule_never_meets_old_code(
    tmp_path: Path, changed: Callable[..., Expr]
) -> None:
    record = OpDef(
        "scaled",
        "Scale the operand.",
        (Operand("x", ("float",)),),
        lambda operands, attributes: operands[0],
        lambda operands, attributes: operands[0] * 2.0,
        NoGradient("a test"),
        traits=frozenset({Trait.ELEMENTWISE}),
        samples=lambda: (Sample("one", (np.zeros(2),)),),
    )
    register(record)
    try:
        found = []
        for rule in (_signed(2.0), changed, _signed(2.0)):
            register_scalar_rule("scaled", rule)
            try:
                graph = frame.trace(lambda x: frame.ops.scaled(x), frame.spec((3,)))
                loaded = load(Declared(graph), Cache(tmp_path))
                found.append((loaded.hit, float(loaded.run.run([np.ones(3, np.float32)])[0][0])))
            finally:
                unregister_scalar_rule("scaled")
        factor = 3.0 if changed is not _negated else -1.0
        assert found == [(False, 2.0), (False, factor), (True, 2.0)]
    finally:
        unregister("scaled")


def test_a_built_in_scalar_rule_is_not_replaced() -> None:
    with pytest.raises(AlreadyExistsError, match="add"):
        register_scalar_rule("add", _negated)
    with pytest.raises(NotFoundError, match="add"):
        unregister_scalar_rule("add")
