"""`compile(..., tune=True)`: what is measured and kept. Clocks are made up: no test waits."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import frame
from frame import nn
from frame.backends.cpu.backend import CpuBackend
from frame.cli.app import main
from frame.compiler.optimizers import SGD
from frame.core import config
from frame.core.errors import InvalidArgumentError
from frame.ir.printer import print_graph
from frame.runtime.cache import CHOICE, default_cache, process_cache
from frame.runtime.measuring import Measurement
from tests.runtime.support import forget_programs, numbers, watched
from tests.support.recorder import recorder

SHAPES = ((40, 24), (24, 48))
Runs = Mapping[str, Callable[[int], Any]]


def product(a, b):
    return frame.ops.relu(a @ b)


def compiled(**options: Any) -> frame.CompiledModel:
    return frame.compile(product, [frame.spec(shape) for shape in SHAPES], **options)


def chosen(model: frame.CompiledModel, entry: str = "infer") -> list[str]:
    return [row.variant for row in model.entry(entry).loaded.manifest.tuned]


def keys(model: frame.CompiledModel) -> set[str]:
    return {piece.key for piece in model.entry("infer").loaded.manifest.run.pieces}


@pytest.fixture
def last_wins(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[list[str]]]:
    """Let the last variant of each group win; gives the variants of each that is measured."""
    seen: list[list[str]] = []

    def decide(self: Measurement, runs: Runs, deadline: float) -> tuple[str, float]:
        seen.append(list(runs))
        return list(runs)[-1], 1.25

    variants = CpuBackend.variants
    few = lambda self, group, target: variants(self, group, target)[:2]  # noqa: E731
    monkeypatch.setattr(CpuBackend, "variants", few)
    monkeypatch.setattr(Measurement, "decide", decide)
    yield seen
    process_cache().clear()


def test_a_second_compile_measures_nothing_and_a_warm_start_runs_no_pass(last_wins: Any) -> None:
    plain = compiled()
    with watched() as first:
        tuned = compiled(tune=True)
    assert first.stats.tuned == 1 and len(last_wins[0]) > 2 and chosen(tuned) == [last_wins[0][-1]]
    forget_programs()
    with watched() as second:
        again = compiled(tune=5)
    assert (second.stats.passes, second.stats.compiled, second.stats.tuned) == (0, 0, 0)
    assert second.stats.manifests == 1 and chosen(again) == chosen(tuned)
    arrays = [numbers(*shape) for shape in SHAPES]
    for model in (tuned, again):
        np.testing.assert_array_equal(model(*arrays), plain(*arrays))
    assert keys(tuned) == keys(again) and not keys(tuned) & keys(plain)


def test_untuned_compiles_never_see_tuned_code(last_wins: Any) -> None:
    tuned = compiled(tune=True)
    with watched() as found:
        plain = compiled()
    assert found.stats.compiled == 1 and chosen(plain) == [] and not keys(plain) & keys(tuned)


def test_a_choice_outlives_the_manifest(last_wins: Any, cache_folder: Path) -> None:
    """Another network with the same layer takes what was measured."""
    compiled(tune=True)
    shapes = [frame.spec(shape) for shape in SHAPES]

    def other(a, b):
        return frame.ops.relu(a @ b), frame.ops.exp(a)

    with watched() as found:
        model = frame.compile(other, shapes, tune=True)
    assert found.stats.tuned == 0 and chosen(model) == [last_wins[0][-1]]


def test_equal_groups_are_measured_once(last_wins: Any) -> None:
    layers = [nn.Linear(32, 32) for _ in range(3)]
    with watched() as found:
        model = frame.compile(nn.Sequential("m", layers), [frame.spec((24, 32))], tune=True)
    assert found.stats.tuned == 1
    assert [row.count for row in model.entry("infer").loaded.manifest.tuned] == [3]
    assert "tuned: linear" in model.summary() or "25 %" in model.summary()


def test_training_steps_are_tuned_and_state_is_left_alone(last_wins: Any) -> None:
    def made(**options: Any) -> frame.CompiledModel:
        return frame.compile(
            nn.Sequential("m", [nn.Linear(24, 32), nn.ReLU(), nn.Linear(32, 8)]),
            [frame.spec((16, 24))],
            loss=nn.CrossEntropyLoss(),
            targets=[frame.spec((16,), "int64")],
            optimizer=SGD(momentum=0.9),
            **options,
        )

    plain, tuned = made(), made(tune=True)
    assert any(chosen(tuned, "train_step"))
    for name in plain.params:
        np.testing.assert_array_equal(plain.params[name], tuned.params[name])
    x, labels = numbers(16, 24), np.arange(16) % 8
    for _ in range(2):
        one = plain.train_step(x, labels, learning_rate=0.1)
        two = tuned.train_step(x, labels, learning_rate=0.1)
        np.testing.assert_array_equal(one[0], two[0])


@pytest.mark.parametrize("mode", ["0", "readonly"])
def test_without_a_cache_on_disk(mode: str, last_wins: Any, cache_folder: Path) -> None:
    with config.override(FRAME_CACHE=mode, FRAME_CACHE_DIR=str(cache_folder)):
        assert any(chosen(compiled(tune=True)))
        forget_programs()
        with watched() as found:
            assert any(chosen(compiled(tune=True)))
    assert found.stats.tuned == 0 and not list(cache_folder.glob("*/choice/*/*"))


def test_time_that_does_not_suffice(monkeypatch: pytest.MonkeyPatch, last_wins: Any) -> None:
    """Groups keep their schedules, nothing wrong is kept, and the next compile goes on."""
    plain = compiled()
    few = compiled(tune=1e-9)
    assert few.entry("infer").loaded.manifest.untuned == 1 and chosen(few) == []
    assert keys(few) == keys(plain)
    with watched() as found:
        more = compiled(tune=True)
    assert found.stats.tuned == 1 and any(chosen(more))


@pytest.mark.parametrize(
    "value",
    [
        b"{}",
        b"\xff",
        json.dumps({"variant": "panels=0", "gain": 2.0}).encode(),
        json.dumps({"variant": "depth=8", "gain": 2.0}).encode(),
        json.dumps({"variant": "panels=2", "gain": "nan"}).encode(),
    ],
)
def test_choices_of_no_use_are_ignored_with_one_warning(
    value: bytes, last_wins: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, get = default_cache(), type(default_cache()).get

    def damaged(self: Any, kind: str, key: str) -> bytes | None:
        return value if kind == CHOICE else get(self, kind, key)

    monkeypatch.setattr(type(cache), "get", damaged)
    with watched() as found, caplog.at_level(logging.WARNING, "frame"):
        assert any(chosen(compiled(tune=True)))
    assert found.stats.tuned == 1 and len(caplog.records) == 1


def test_an_interrupt_leaves_everything_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: Measurement, runs: Runs, deadline: float) -> tuple[str, float]:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Measurement, "decide", interrupted)
        with pytest.raises(KeyboardInterrupt):
            compiled(tune=True)
    arrays = [numbers(*shape) for shape in SHAPES]
    np.testing.assert_array_equal(compiled(tune=1e-9)(*arrays), compiled()(*arrays))


def test_symbolic_sizes_keep_their_schedules(last_wins: Any) -> None:
    model = frame.compile(product, [frame.spec(("n", 24)), frame.spec((24, 48))], tune=True)
    assert chosen(model) == [] and last_wins == []


def test_profiles_and_sources_show_the_tuned_code(last_wins: Any) -> None:
    tuned, plain = compiled(tune=True), compiled()
    assert tuned.source()["loop"] != plain.source()["loop"]
    forget_programs()
    again = compiled(tune=True)  # from the cache: compiled once more for its source
    with watched() as found:
        assert again.source()["loop"] == tuned.source()["loop"]
    assert found.stats.tuned == 0


def test_files_keep_tuned_objects(last_wins: Any, tmp_path: Path) -> None:
    tuned, path = compiled(tune=True), tmp_path / "tuned.frame"
    tuned.save(path)
    arrays = [numbers(*shape) for shape in SHAPES]
    trusted, fresh = frame.load(path, trust=True), frame.load(path)
    assert chosen(trusted) == chosen(tuned) and chosen(fresh) == []
    np.testing.assert_array_equal(trusted(*arrays), fresh(*arrays))


def test_jit_takes_the_option(last_wins: Any) -> None:
    arrays = [numbers(*shape) for shape in SHAPES]
    tuned, plain = frame.jit(product, tune=True), frame.jit(product)
    np.testing.assert_array_equal(tuned(*arrays), plain(*arrays))
    assert len(last_wins) == 1


@pytest.mark.parametrize("tune", [0, -1, "yes", float("nan"), float("inf"), [1]])
def test_bad_values_are_refused(tune: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="tune to be True, False or a number of seconds"):
        compiled(tune=tune)


def test_other_backends_refuse_by_name() -> None:
    with recorder() as owner:
        with pytest.raises(InvalidArgumentError, match="has no schedules that can be tuned"):
            compiled(backend=owner.name, tune=True)
        assert compiled(backend=owner.name, tune=False)


def test_the_command_line(
    last_wins: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "product.txt"
    text.write_text(print_graph(compiled().graph), encoding="utf-8")
    assert main(["compile", str(text), "--tune", "5"]) == 0
    assert last_wins
    assert main(["compile", str(text), "--tune", "-1"]) == 2
    assert "tune" in capsys.readouterr().err


# --- decisions ------------------------------------------------------------------------------------


class Clocked:
    """A measurement on a clock that each run moves by its own seconds."""

    def __init__(self, seconds: Mapping[str, float | Callable[[int], float]]) -> None:
        self.now, self.count = 0.0, 0
        self.measurement = Measurement.__new__(Measurement)
        self.measurement.clock = lambda: self.now
        self.measurement.sets = [[]]
        self.runs = {name: self._run(each) for name, each in seconds.items()}

    def _run(self, seconds: float | Callable[[int], float]) -> Callable[[int], Any]:
        def run(number: int) -> None:
            self.count += 1
            self.now += seconds(self.count) if callable(seconds) else seconds

        return run

    def decide(self) -> tuple[str, float] | None:
        return self.measurement.decide(self.runs, float("inf"))


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ({"": 1.0}, ("", 1.0)),
        ({"": 1.0, "a": 0.98, "b": 1.2}, ("", 1.0)),
        ({"": 1.0, "a": 0.9, "b": 0.8, "c": 2.0}, ("b", 1.25)),
        ({"": 1.0, "a": lambda count: 0.5 if count % 5 < 3 else 1.5}, ("", 1.0)),
    ],
)
def test_the_default_stays_unless_one_is_clearly_faster(seconds: Any, expected: Any) -> None:
    assert Clocked(seconds).decide() == expected


def test_time_over_decides_nothing() -> None:
    clocked = Clocked({"": 1.0, "a": 0.5})
    assert clocked.measurement.decide(clocked.runs, 0.0) is None
