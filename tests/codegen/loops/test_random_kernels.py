"""Random kernels through random rewrites, the text and native code: the results never change."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections import Counter

import numpy as np
import pytest

from frame.codegen.loops import builder as b
from frame.codegen.loops.interpreter import run_kernel
from frame.codegen.loops.ir import Block, Const, For, If, Kernel, LoopKind, Stmt
from frame.codegen.loops.parser import parse_kernel
from frame.codegen.loops.printer import kernel_key, print_kernel
from frame.codegen.loops.rewrites import parallel_extent, parallel_loop, simplify, unroll
from frame.codegen.loops.traverse import Substitution
from frame.codegen.loops.verifier import verify_kernel
from frame.core.errors import InternalError
from tests.codegen.loops.random_kernels import Case, Generator, rewrite_somehow
from tests.codegen.native import Native, module_of

ROWS = (0, 1, 6)
SEEDS = [*range(32), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(32, 160))]


def results(case: Case, kernel, rows: int, order: str = "forward") -> list[np.ndarray]:
    arrays = case.run_arrays(rows)
    run_kernel(kernel, arrays, [rows], order=order)
    return arrays


def assert_same(case: Case, expected, kernel, order: str, story: str) -> None:
    for rows in ROWS:
        found = results(case, kernel, rows, order)
        for one, other in zip(expected[rows], found, strict=True):
            np.testing.assert_array_equal(one, other, err_msg=f"{rows} rows after {story}")


@pytest.mark.parametrize("seed", SEEDS)
def test_rewrites_change_no_result(seed: int) -> None:
    case = Generator(seed).case()
    verify_kernel(case.kernel)
    expected = {rows: results(case, case.kernel, rows) for rows in ROWS}
    choose = random.Random(seed)
    kernel, story = case.kernel, ""
    for _ in range(choose.randint(1, 4)):
        name, kernel = rewrite_somehow(kernel, choose)
        story += f" {name}"
        verify_kernel(kernel)
        assert_same(case, expected, kernel, choose.choice(["forward", "reversed"]), story)
    assert_same(case, expected, simplify(kernel), "shuffled", f"{story} simplify")


@pytest.mark.parametrize("seed", range(12))
def test_text_is_a_round_trip(seed: int) -> None:
    case = Generator(seed).case()
    choose = random.Random(seed)
    kernel = case.kernel
    for _ in range(3):
        _, kernel = rewrite_somehow(kernel, choose)
    text = print_kernel(kernel)
    again = parse_kernel(text)
    assert print_kernel(again) == text
    assert kernel_key(again) == kernel_key(kernel)
    verify_kernel(again)
    expected = {rows: results(case, case.kernel, rows) for rows in ROWS}
    assert_same(case, expected, again, "forward", "parsing")


def test_texts_do_not_depend_on_history() -> None:
    first, second = (print_kernel(Generator(3).case().kernel) for _ in range(2))
    assert first == second


def test_every_rewrite_is_exercised() -> None:
    """The random sequences above apply each rewrite."""
    names: Counter[str] = Counter()
    for seed in range(160):
        choose = random.Random(seed)
        kernel = Generator(seed).case().kernel
        for _ in range(choose.randint(1, 4)):
            name, kernel = rewrite_somehow(kernel, choose)
            names[name] += 1
    for rule in ("vectorise", "tile", "unroll", "parallelise", "simplify", "predicate", "stage"):
        assert names[f"_{rule}"] >= 3, names


def test_native_code_agrees_bit_for_bit() -> None:
    """Kernels before and after rewrites, compiled together and run against the interpreter."""
    cases: list[tuple[Case, Kernel]] = []
    for seed in range(14):
        case, choose = Generator(seed).case(), random.Random(seed)
        kernel = case.kernel
        for _ in range(seed % 3 + 1):
            _, kernel = rewrite_somehow(kernel, choose)
        kernel = dataclasses.replace(finished(kernel), name=f"k{seed}")
        verify_kernel(kernel, lowered=True)
        cases.append((case, kernel))
    native = Native(module_of(*(kernel for _, kernel in cases)))
    for (case, kernel), rows in itertools.product(cases, ROWS):
        expected, found = results(case, kernel, rows), case.run_arrays(rows)
        loop = parallel_loop(kernel)
        native.kernel(kernel.name, found, [rows], chunks_of(kernel, rows) if loop else 1)
        for one, other in zip(expected, found, strict=True):
            np.testing.assert_array_equal(one, other, err_msg=f"{kernel.name}, {rows} rows")


def finished(kernel: Kernel) -> Kernel:
    """Unroll what reads register buffers by a variable, as a schedule does before emission."""
    try:
        verify_kernel(kernel, lowered=True)
    except InternalError:
        return dataclasses.replace(kernel, body=flattened(kernel.body))
    return kernel


def flattened(block: Block) -> Block:
    done: list[Stmt] = []
    for s in block:
        if isinstance(s, For):
            loop = For(s.kind, s.var, s.extent, flattened(s.body), s.carried)
            constant = isinstance(s.extent, Const)
            done.extend(unroll(loop) if constant and s.kind is LoopKind.SERIAL else (loop,))
        elif isinstance(s, If):
            done.append(If(s.condition, flattened(s.then), flattened(s.otherwise)))
        else:
            done.append(s)
    return tuple(done)


def chunks_of(kernel: Kernel, rows: int) -> int:
    extent = Substitution({kernel.scalars[0]: b.index(rows)}).expression(parallel_extent(kernel))
    return int(b.constant_value(extent))
