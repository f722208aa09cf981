"""`.frame` files: a model is what it was, a damaged file says so, and no file can run code."""

from __future__ import annotations

import hashlib
import json
import logging
import struct
from pathlib import Path

import numpy as np
import pytest

import frame
from frame import nn
from frame.compiler.optimizers import SGD, Adam
from frame.core.errors import InvalidArgumentError, NotFoundError
from frame.runtime import framefile
from frame.runtime.cache import default_cache
from tests.project import checkout
from tests.runtime.support import add_relu, forget_programs, model, numbers, watched


def _network() -> nn.Module:
    return nn.Sequential("net", [nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)])


def _trained(optimizer=None, steps: int = 3):
    made = frame.compile(
        _network(),
        [frame.spec(("batch", 4))],
        loss=nn.CrossEntropyLoss(),
        targets=[frame.spec(("batch",), "int64")],
        optimizer=optimizer or Adam(),
        seed=7,
    )
    for _ in range(steps):
        made.train_step(X, LABELS, learning_rate=0.05)
    return made


X = numbers(6, 4)
LABELS = np.array([0, 1, 2, 0, 1, 2])


@pytest.mark.parametrize("trust", [False, True])
def test_a_model_is_what_it_was(tmp_path, trust: bool) -> None:
    made = _trained()
    made.save(tmp_path / "m.frame")
    loaded = frame.load(tmp_path / "m.frame", trust=trust)
    assert list(loaded.params) == list(made.params)
    assert loaded(X).tobytes() == made(X).tobytes()
    for _ in range(2):  # the optimizer's state came along
        ours = made.train_step(X, LABELS, learning_rate=0.05)[0]
        assert loaded.train_step(X, LABELS, learning_rate=0.05)[0] == ours
    assert loaded(X).tobytes() == made(X).tobytes()


def test_a_reloaded_model_hits_the_cache(tmp_path) -> None:
    _trained().save(tmp_path / "m.frame", objects=False)
    forget_programs()
    with watched() as seen:
        loaded = frame.load(tmp_path / "m.frame")
        loaded(X)
        loaded.train_step(X, LABELS, learning_rate=0.1)
    assert seen.stats.row()[:2] == (0, 0) and seen.stats.manifests == 2


def test_a_new_process_hits_the_cache_without_a_pass(tmp_path, cache_folder) -> None:
    made = _trained()
    made.save(tmp_path / "m.frame")
    code = (
        "import numpy, frame; from frame.runtime.statistics import compile_stats\n"
        "m = frame.load('m.frame'); x = numpy.load('x.npy')\n"
        "print(m(x).tobytes().hex(), compile_stats().passes, compile_stats().compiled)"
    )
    np.save(tmp_path / "x.npy", X)
    result = checkout.run_python(
        "-c", code, folder=tmp_path, path=checkout.ROOT, FRAME_CACHE_DIR=str(cache_folder)
    )
    assert result.stdout.split() == [made(X).tobytes().hex(), "0", "0"], result.stderr


def test_machine_code_is_run_when_trusted_and_only_then(tmp_path) -> None:
    _trained().save(tmp_path / "m.frame")
    for trust in (True, False):
        default_cache().clear()
        forget_programs()
        with watched() as seen:
            loaded = frame.load(tmp_path / "m.frame", trust=trust)
            loaded(X)
        assert (seen.stats.passes == 0) is trust


def test_machine_code_of_other_code_is_left_aside(tmp_path) -> None:
    _trained().save(tmp_path / "m.frame")
    _edit_header(tmp_path / "m.frame", _other_source)
    forget_programs()
    default_cache().clear()
    with watched() as seen:
        frame.load(tmp_path / "m.frame", trust=True)
    assert seen.stats.passes > 0


def _other_source(header: dict) -> None:
    for row in header["entries"]:
        for item in row["objects"]:
            item["source"] = "0" * 64


def _edit_header(path: Path, change) -> None:
    """Change the header of a file and make its digest fit, as somebody with ill intent would."""
    data = path.read_bytes()
    length = struct.unpack("<Q", data[8:16])[0]
    header = json.loads(data[48 : 48 + length])
    change(header)
    text = json.dumps(header).encode()
    fixed = data[:8] + struct.pack("<Q", len(text)) + hashlib.sha256(text).digest()
    path.write_bytes(fixed + text + data[48 + length :])


@pytest.mark.parametrize("kept", [0, 1, 7, 8, 47, 48, 100, 0.5, -1])
def test_a_truncated_file_says_so(tmp_path, kept) -> None:
    path = tmp_path / "m.frame"
    model().save(path)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * kept)] if isinstance(kept, float) else data[:kept])
    with pytest.raises(InvalidArgumentError, match="expected a sound .frame file, received"):
        frame.load(path)


def test_every_flipped_byte_is_found_where_it_matters(tmp_path) -> None:
    path = tmp_path / "m.frame"
    made = model()
    made.save(path, objects=False)
    sound, wanted = path.read_bytes(), made(X, X).tobytes()
    for position in range(0, len(sound), max(1, len(sound) // 60)):
        torn = bytearray(sound)
        torn[position] ^= 0x20
        path.write_bytes(torn)
        try:
            assert frame.load(path)(X, X).tobytes() == wanted  # padding between sections
        except InvalidArgumentError as error:
            assert "m.frame" in str(error)


EDITS = {
    "format": (lambda h: h.update(format=2), "format is 2"),
    "no entries": (lambda h: h.update(entries=[]), "entries are"),
    "double entry": (lambda h: h["entries"].append(h["entries"][0]), "expected 'infer' once"),
    "double section": (lambda h: h["sections"].append(h["sections"][0]), "two sections named"),
    "overlap": (lambda h: h["sections"][1].__setitem__(1, 0), "overlaps"),
    "beyond": (lambda h: h["sections"][-1].__setitem__(2, 1 << 60), "truncated"),
    "negative": (lambda h: h["sections"][0].__setitem__(2, -1), "overlaps"),
    "sections": (lambda h: h.update(sections=7), "table of sections"),
    "row": (lambda h: h["sections"].insert(0, ["a", 0, "b", "c"]), "row of its table"),
    "lost section": (lambda h: h.update(weights="elsewhere"), "does not have"),
    "type": (lambda h: h.update(name=[1]), "the field 'name'"),
    "entry type": (lambda h: h["entries"][0].update(graph=3), "the field 'graph'"),
    "counter": (lambda h: h.update(counter=[1, -2]), "random counter"),
    "parameter": (lambda h: h["parameters"].append("ghost"), "'ghost' is not among its weights"),
}


@pytest.mark.parametrize("name", EDITS)
def test_a_header_that_was_tampered_with(tmp_path, name: str) -> None:
    change, message = EDITS[name]
    path = tmp_path / "m.frame"
    model().save(path)
    _edit_header(path, change)
    with pytest.raises(InvalidArgumentError, match=message):
        frame.load(path)


def test_an_optimizer_is_a_name_in_a_closed_table(tmp_path) -> None:
    path = tmp_path / "m.frame"
    _trained(SGD(momentum=0.9)).save(path, objects=False)
    sound = path.read_bytes()
    for transform in (
        {"optimizer": "os.system", "options": {}, "wrt": []},
        {"optimizer": "sgd", "options": {"momentum": "__import__('os')"}, "wrt": []},
        {"optimizer": "sgd", "options": {"command": 1}, "wrt": []},
        {"optimizer": "sgd", "options": {}, "wrt": ["ghost"]},
        {},
    ):
        path.write_bytes(sound)
        _edit_header(path, lambda h, t=transform: h["entries"][0].update(transform=t))
        with pytest.raises(InvalidArgumentError):
            frame.load(path).entry("train_step")


def test_other_files_and_no_file(tmp_path) -> None:
    with pytest.raises(NotFoundError, match="no file"):
        frame.load(tmp_path / "absent.frame")
    (tmp_path / "zip.frame").write_bytes(b"PK\x03\x04" + bytes(100))
    with pytest.raises(InvalidArgumentError, match="does not begin as such a file"):
        frame.load(tmp_path / "zip.frame")
    absurd = framefile.MAGIC + struct.pack("<Q", 1 << 62) + bytes(32)
    (tmp_path / "absurd.frame").write_bytes(absurd)
    with pytest.raises(InvalidArgumentError, match="more than"):
        frame.load(tmp_path / "absurd.frame")


def test_saving_replaces_the_file_whole_or_not_at_all(tmp_path, monkeypatch) -> None:
    path = tmp_path / "m.frame"
    made = model()
    made.save(path)
    before = path.read_bytes()
    monkeypatch.setattr(framefile, "print_graph", lambda graph: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        made.save(path)
    assert path.read_bytes() == before and [p.name for p in tmp_path.glob("*m.frame*")] == [
        "m.frame"
    ]
    monkeypatch.undo()
    with pytest.raises(NotFoundError, match="folder"):
        made.save(tmp_path / "absent" / "m.frame")


def test_saving_twice_gives_equal_bytes(tmp_path) -> None:
    made = _trained()
    made(X)
    made.save(tmp_path / "a.frame")
    made.save(tmp_path / "b.frame")
    assert (tmp_path / "a.frame").read_bytes() == (tmp_path / "b.frame").read_bytes()


def test_large_constants_and_passes_come_along(tmp_path) -> None:
    table = numbers(10, 4, seed=3)
    made = model(lambda x: x[:1] + table, (10, 4), 1, passes="without layout_assignment")
    made.save(tmp_path / "m.frame")
    loaded = frame.load(tmp_path / "m.frame")
    x = numbers(10, 4)
    np.testing.assert_array_equal(loaded(x), x[:1] + table)
    assert loaded.entry("infer").declared.passes == ["without layout_assignment"]


def test_an_optimizer_of_the_user_is_left_out_with_a_warning(tmp_path, caplog) -> None:
    class Mine(SGD):
        pass

    made = _trained(Mine(momentum=0.5))
    with caplog.at_level(logging.WARNING):
        made.save(tmp_path / "m.frame")
    assert "train_step is not saved" in caplog.text
    loaded = frame.load(tmp_path / "m.frame")
    assert loaded(X).tobytes() == made(X).tobytes()
    with pytest.raises(NotFoundError, match="no entry 'train_step'"):
        loaded.train_step(X, LABELS, learning_rate=0.1)


def test_load_results_are_used_where_their_program_is_the_same(tmp_path) -> None:
    made = frame.compile(_network(), [frame.spec(("batch", 4))])
    made(X)
    made.save(tmp_path / "m.frame")
    loaded = frame.load(tmp_path / "m.frame")
    assert made.entry("infer").loaded.load is not None, "nothing is derived from the weights"
    assert loaded.entry("infer")._derived is not None
    loaded.load_params({"net.0.bias": np.ones(8, np.float32)})  # they are made again then
    made.load_params({"net.0.bias": np.ones(8, np.float32)})
    assert loaded(X).tobytes() == made(X).tobytes()


def test_load_results_of_another_program_are_left_aside(tmp_path) -> None:
    made = frame.compile(_network(), [frame.spec(("batch", 4))])
    want = made(X).tobytes()
    made.save(tmp_path / "m.frame")

    def other(header: dict) -> None:
        for row in header["entries"]:
            for item in row["objects"]:
                assert item["derived"] and len(item["derived_key"]) == 64
                item["derived_key"] = "0" * 64

    _edit_header(tmp_path / "m.frame", other)
    loaded = frame.load(tmp_path / "m.frame")
    assert loaded.entry("infer")._derived is None
    assert loaded(X).tobytes() == want


def test_module_paths_come_along(tmp_path) -> None:
    made = frame.compile(_network(), [frame.spec(("batch", 4))])
    made.save(tmp_path / "m.frame")
    loaded = frame.load(tmp_path / "m.frame")
    found = {row.module for row in loaded.profile(X)}
    assert found == {row.module for row in made.profile(X)} and any("net." in m for m in found)


def test_a_function_comes_back(tmp_path) -> None:
    made = model(add_relu)
    made.save(tmp_path / "m.frame")
    np.testing.assert_array_equal(frame.load(tmp_path / "m.frame")(X, X), made(X, X))
