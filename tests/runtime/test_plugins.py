"""Plug-ins: found by entry points on sys.path, loaded when needed, named when they are broken."""

from __future__ import annotations

import importlib
import logging
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import frame
from frame import ops
from frame.core.errors import AlreadyExistsError, DeviceError, InvalidArgumentError, NotFoundError
from frame.ops.registry import unregister
from frame.runtime import backends
from frame.runtime.loading import Declared, fresh, key_of, load
from tests.project import checkout
from tests.runtime.support import watched
from tests.support.recorder import FOLDER

Install = Callable[..., Path]


@pytest.fixture
def install(tmp_path: Path, monkeypatch) -> Install:
    """Install a distribution, as pip would, into a folder of its own on sys.path."""
    before = set(sys.modules)

    def add(name: str, group: str, points: dict[str, str], **modules: str) -> Path:
        site = tmp_path / name
        info = site / f"{name}-1.5.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.5\n")
        rows = "".join(f"{key} = {value}\n" for key, value in points.items())
        (info / "entry_points.txt").write_text(f"[{group}]\n{rows}")
        for module, text in modules.items():
            (site / f"{module}.py").write_text(text)
        monkeypatch.syspath_prepend(str(site))
        importlib.invalidate_caches()
        return site

    yield add
    for name in set(sys.modules) - before:
        if name.startswith(("plug_", "frame_recorder")):
            del sys.modules[name]
    for name in [n for n in backends._loaded if n not in backends.OWN]:
        del backends._loaded[name]


def on(name: str, x: np.ndarray) -> np.ndarray:
    return frame.compile(lambda x: x * 2.0, [frame.spec(x.shape)], backend=name)(x)


# --- backends -------------------------------------------------------------------------------------


def test_an_installed_backend_is_found_by_its_entry_point(install: Install) -> None:
    point = {"recorder": "frame_recorder:create_backend"}
    site = install("frame-recorder", "frame.backends", point)
    shutil.copytree(FOLDER / "frame_recorder", site / "frame_recorder")
    assert "recorder" in backends.backend_names()
    x = np.ones((2, 3), np.float32)
    assert np.array_equal(on("recorder", x), x * 2)
    assert [op.name for op in backends.backend("recorder").log].count("mul") == 1
    with pytest.raises(AlreadyExistsError, match="recorder"):
        backends.register_backend("recorder", lambda: None)


COMPLETE = """
import sys
sys.path.insert(0, {folder!r})
from frame_recorder import RecorderBackend
def make():
    made = RecorderBackend(name={name!r})
    {change}
    return made
"""

BROKEN = {
    "raises": ("raise ZeroDivisionError('at import')", "ZeroDivisionError: at import"),
    "no_such_name": ("x = 1", "AttributeError"),
    "no_function": ("make = 3", "expected a function"),
    "fails": ("def make():\n    raise OSError('no driver')", "OSError: no driver"),
    "wrong_type": ("def make():\n    return 42", "members of frame.hal.Backend, received 42"),
    "old": ("made.api_version = 0", "speaks version 0 of the backend interface, expected 1"),
    "lacks": ("made = type('Made', (), {'api_version': 1})()", "lacks name, devices"),
    "renamed": ("made.name = 'other'", "calls itself 'other'"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_plug_in_is_named_and_others_go_on(kind: str, install: Install) -> None:
    code, message = BROKEN[kind]
    if code.startswith("made"):
        code = COMPLETE.format(folder=str(FOLDER), name=kind, change=code)
    install(f"dist-{kind}", "frame.backends", {kind: f"plug_{kind}:make"}, **{f"plug_{kind}": code})
    with pytest.raises(DeviceError, match=message) as caught:
        backends.backend(kind)
    assert f"{kind!r} (plug_{kind}:make) of dist-{kind} 1.5" in str(caught.value)
    x = np.ones((2, 3), np.float32)
    assert np.array_equal(on("cpu", x), x * 2)
    assert {kind, "cpu", "intel_npu"} <= set(backends.backend_names())


def test_two_packages_with_one_name_are_both_named(install: Install) -> None:
    for name in ("first", "second"):
        install(name, "frame.backends", {"twin": f"plug_{name}:make"}, **{f"plug_{name}": ""})
    with pytest.raises(DeviceError, match=r"first 1.5.*second 1.5|second 1.5.*first 1.5"):
        backends.backend("twin")


def test_no_plug_in_takes_the_name_of_an_own_backend(install: Install, caplog) -> None:
    install("thief", "frame.backends", {"cpu": "plug_thief:make"}, plug_thief="raise OSError")
    with caplog.at_level(logging.WARNING, "frame.runtime"):
        assert "cpu" in backends.backend_names()
    assert "thief 1.5 is ignored" in caplog.text
    assert type(backends.backend("cpu")).__module__ == "frame.backends.cpu.backend"


# --- ops and schedules ----------------------------------------------------------------------------

OPS = """
import numpy as np
from frame.ops.record import NoGradient, OpDef, Operand, Sample, Trait
from frame.ops.registry import register
register(OpDef(
    "plug_twice", "Return 2 x.", (Operand("x", ("float",)),), lambda o, a: o[0],
    lambda o, a: o[0] * 2, NoGradient("a test"),
    traits=frozenset({Trait.ELEMENTWISE}), samples=lambda: (Sample("one", (np.zeros(2),)),),
))
"""
RULES = """
from frame.codegen import register_scalar_rule
from frame.codegen.loops import builder as b
register_scalar_rule("plug_twice", lambda context, x: b.add(x, x))
"""


@pytest.fixture
def twice(install: Install) -> Path:
    site = install("op-dist", "frame.ops", {"any": "plug_ops"}, plug_ops=OPS)
    yield site
    from frame.codegen.foreign import RULES as rules
    from frame.codegen.schedules import scalar_rules

    for table in (rules, scalar_rules.RULES):
        table.pop("plug_twice", None)
    unregister("plug_twice")


def test_ops_are_loaded_at_the_first_name_that_is_not_known(twice: Path) -> None:
    assert "plug_ops" not in sys.modules
    x = np.float32([1, -2])
    model = frame.compile(lambda x: ops.plug_twice(x) + 1.0, [frame.spec((2,))])
    assert "plug_ops" in sys.modules
    assert np.array_equal(model(x), 2 * x + 1) and model.host_steps == ("plug_twice",)


def test_schedules_are_loaded_with_a_graph_of_such_ops(twice: Path, install: Install) -> None:
    install("rule-dist", "frame.schedules", {"rules": "plug_rules"}, plug_rules=RULES)
    frame.compile(lambda x: x + 1.0, [frame.spec((2,))])
    assert "plug_rules" not in sys.modules
    model = frame.compile(lambda x: ops.plug_twice(x) + 1.0, [frame.spec((2,))])
    assert "plug_rules" in sys.modules and model.host_steps == ()
    assert np.array_equal(model(np.float32([1, -2])), [3, -3])


def test_the_sources_of_a_plug_in_are_in_the_key(twice: Path) -> None:
    graph = frame.trace(lambda x: ops.plug_twice(x), frame.spec((2,)))
    first = key_of(Declared(graph)).text
    assert key_of(Declared(graph)).text == first
    path = twice / "plug_ops.py"
    path.write_text(path.read_text() + "\nHELPER = 3\n")
    assert key_of(Declared(graph)).text != first
    plain = frame.trace(lambda x: x + 1.0, frame.spec((2,)))
    before = key_of(Declared(plain)).text
    path.write_text(OPS)
    assert key_of(Declared(plain)).text == before


def test_two_releases_of_a_plug_in_do_not_overwrite_each_others_code(
    twice: Path, install: Install
) -> None:
    """A rule may lean on a versioned package, whose sources no look at the rule itself follows."""
    uses = RULES.replace("b.add(x, x)", "plug_helper.double(x)") + "\nimport plug_helper\n"
    helper = "from frame.codegen.loops import builder as b\n__version__ = '1'\n"
    helper += "def double(x): return b.add(x, x)\n"
    points = {"rules": "plug_rules", "helper": "plug_helper"}
    site = install("rule-dist", "frame.schedules", points, plug_rules=uses, plug_helper=helper)
    declared = Declared(frame.trace(lambda x: ops.plug_twice(x), frame.spec((2,))))
    load(declared)
    first = [piece.key for piece in fresh(declared).manifest.run.pieces]
    assert first == [piece.key for piece in fresh(declared).manifest.run.pieces]
    (site / "plug_helper.py").write_text(helper.replace("b.add(x, x)", "b.mul(x, 2.0)"))
    assert first != [piece.key for piece in fresh(declared).manifest.run.pieces]


def test_a_broken_plug_in_of_ops_is_logged_and_others_load(
    twice: Path, install: Install, caplog
) -> None:
    install("bad-dist", "frame.ops", {"bad": "plug_bad"}, plug_bad="1 / 0")
    with caplog.at_level(logging.WARNING, "frame.plugins"):
        assert callable(ops.plug_twice)
        with pytest.raises(AttributeError, match="no_such_op"):
            _ = ops.no_such_op
        with pytest.raises(NotFoundError, match="no_such_op"):
            ops.lookup("no_such_op")
    (record,) = caplog.records
    assert "bad-dist 1.5 does not load: ZeroDivisionError" in record.getMessage()


# --- passes ---------------------------------------------------------------------------------------

PASS = """
from dataclasses import dataclass
from typing import ClassVar
@dataclass(frozen=True)
class Nothing:
    name: ClassVar[str] = "plug_nothing"
    level: int = 0
    def run(self, graph, context):
        context.count("level", self.level)
        return graph
"""


def test_passes_are_loaded_by_name_and_their_sources_are_in_the_key(install: Install) -> None:
    site = install("pass-dist", "frame.passes", {"plug_nothing": "plug_pass:Nothing"},
                   plug_pass=PASS)  # fmt: skip
    install("bad-passes", "frame.passes", {"plug_bad": "plug_no:X", "plug_int": "plug_int:x"},
            plug_no="1 / 0", plug_int="x = 3")  # fmt: skip
    edit = ["after canonicalize: plug_nothing{level=2}"]
    graph = frame.trace(lambda x: x + 1.0, frame.spec((2,)))
    plain = key_of(Declared(graph)).text
    assert "plug_pass" not in sys.modules
    first = key_of(Declared(graph, passes=edit)).text
    assert first not in (plain, key_of(Declared(graph, passes=[edit[0].replace("2", "3")])).text)
    path = site / "plug_pass.py"
    path.write_text(PASS + "\nHELPER = 3\n")
    assert key_of(Declared(graph, passes=edit)).text != first
    with watched() as found:
        frame.compile(graph, passes=edit)
    assert found.stats.passes
    with pytest.raises(DeviceError, match="bad-passes 1.5 does not load: ZeroDivisionError"):
        frame.compile(graph, passes=["after canonicalize: plug_bad"])
    with pytest.raises(InvalidArgumentError, match="bad-passes 1.5: expected a frozen dataclass"):
        frame.compile(graph, passes=["after canonicalize: plug_int"])


# --- lazily ---------------------------------------------------------------------------------------


def test_nothing_is_looked_for_before_it_is_needed(tmp_path: Path) -> None:
    code = """
import sys, numpy as np, frame
assert "importlib.metadata" not in sys.modules, "import"
model = frame.compile(lambda x: x + 1.0, [frame.spec((2,))])
model(np.zeros(2, np.float32))
from frame.core import plugins
assert not plugins._looked and not plugins._tops
"""
    settings = {"FRAME_CACHE_DIR": str(tmp_path / "cache")}
    result = checkout.run_python("-c", code, folder=tmp_path, path=checkout.ROOT, **settings)
    assert result.returncode == 0, result.stderr
