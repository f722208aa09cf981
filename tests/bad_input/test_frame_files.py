"""`.frame` files that were changed: by an accident anywhere, and by somebody who knows the format.

Every load either refuses the file in words or gives a model; no file ends the process. What is not
trusted is never run.
"""

from __future__ import annotations

import hashlib
import json
import random
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import frame
from frame import nn
from frame.core.errors import FrameError, InvalidArgumentError
from frame.runtime.cache import default_cache
from frame.runtime.framefile import read_header
from frame.runtime.loading import _in_use
from frame.train import Adam

X = np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32)
LABELS = np.array([0, 1, 2, 0, 1])


@pytest.fixture(scope="module", autouse=True)
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One cache for all tests here, so that a sound graph is compiled once."""
    from frame.core import config

    with config.override(FRAME_CACHE_DIR=str(tmp_path_factory.mktemp("cache")), FRAME_CACHE="1"):
        yield


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with every kind of section: constants, a training step, load results, objects."""
    table = np.random.default_rng(1).standard_normal((40, 3)).astype(np.float32)

    @nn.module(weight=nn.param((40, 3)))
    def last(self, x):  # type: ignore[no-untyped-def]
        return x @ (self.weight + table)

    net = nn.Sequential("net", [nn.Linear(4, 40), nn.ReLU(), nn.Dropout(0.1), last])
    model = frame.compile(
        net,
        [frame.spec(("batch", 4))],
        loss=nn.CrossEntropyLoss(),
        targets=[frame.spec(("batch",), "int64")],
        optimizer=Adam(),
    )
    model.train_step(X, LABELS, learning_rate=0.01)
    model(X)
    path = tmp_path_factory.mktemp("sound") / "m.frame"
    model.save(path)
    return path


@pytest.fixture(scope="module")
def wanted(sound: Path) -> bytes:
    return frame.load(sound)(X).tobytes()


def _outcome(path: Path, trust: bool) -> bytes | None:
    """What a loaded model gives, after a training step too; None where the file is refused."""
    try:
        model = frame.load(path, trust=trust)
        found = model(X).tobytes()
        model.train_step(X, LABELS, learning_rate=0.01)
        return found
    except FrameError as error:
        assert len(str(error)) > 20
        return None


@pytest.mark.parametrize("trust", [False, True])
def test_flipped_bytes_anywhere(tmp_path: Path, sound: Path, wanted: bytes, trust: bool) -> None:
    """A damaged file is refused, or the damage is in the padding between sections."""
    data, generator = sound.read_bytes(), random.Random(f"flip {trust}")
    file = read_header(sound)
    inside = set()
    for offset, length, _ in file.table.values():
        inside.update(range(file.start + offset, file.start + offset + length))
    path = tmp_path / "torn.frame"
    positions = generator.sample(range(len(data)), 150) + list(range(60))
    positions += [file.start + row[0] + row[1] // 2 for row in file.table.values()]
    for position in positions:
        torn = bytearray(data)
        torn[position] ^= 1 << generator.randrange(8)
        path.write_bytes(torn)
        found = _outcome(path, trust)
        assert found in (None, wanted), position
        if (trust and position in inside) or position < file.start:
            assert found is None, f"the damage at byte {position} was not seen"


def _rewritten(path: Path, target: Path, name: str, change: Callable[[bytes], bytes]) -> None:
    """Write the file with one section changed, and every offset and digest made to fit."""
    file = read_header(path)
    sections = {other: file.section(other) for other in file.table}
    sections[name] = change(sections[name])
    rows, blocks, end = [], [], 0
    for other, data in sections.items():
        padding = -end % 64
        blocks.append(b"\0" * padding + data)
        rows.append([other, end + padding, len(data), hashlib.sha256(data).hexdigest()])
        end += padding + len(data)
    text = json.dumps({**file.header, "sections": rows}).encode()
    fixed = struct.pack("<8sQ32s", b"FRAMEF1\n", len(text), hashlib.sha256(text).digest())
    target.write_bytes(fixed + text + b"".join(blocks))


@pytest.mark.parametrize("trust", [False, True])
def test_a_file_of_before_an_attribute_was_there_is_the_same_model(
    tmp_path: Path, trust: bool
) -> None:
    """Files that were written before `affine_sample` had a size say nothing of it: its default."""

    def moved(x, places):  # type: ignore[no-untyped-def]
        return frame.ops.affine_sample(x, places, interpolation="nearest")

    images = np.arange(32, dtype=np.float32).reshape(2, 1, 4, 4)
    places = np.tile(np.float32([[1, 0, 1], [0, 1, 0]]), (2, 1, 1))
    model = frame.compile(moved, [frame.spec(images.shape), frame.spec(places.shape)])
    expected = model(images, places)
    new, old = tmp_path / "new.frame", tmp_path / "old.frame"
    model.save(new)
    (name,) = _section_names(new, "graph")
    seen: list[bytes] = []

    def without(text: bytes) -> bytes:
        seen.append(text)
        return text.replace(b", size=()", b"")

    _rewritten(new, old, name, without)
    assert b"affine_sample" in seen[0] and b", size=()" in seen[0]
    np.testing.assert_array_equal(frame.load(old, trust=trust)(images, places), expected)


def _section_names(sound: Path, kind: str) -> list[str]:
    return [name for name in read_header(sound).table if name.split("/")[0] == kind]


def _flip(data: bytes, generator: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(generator.choice((1, 1, 4))):
        changed[generator.randrange(min(len(changed), 4000))] ^= 1 << generator.randrange(8)
    return bytes(changed)


def _cut(data: bytes, generator: random.Random) -> bytes:
    return data[: generator.randrange(len(data))]


def _repeat(data: bytes, generator: random.Random) -> bytes:
    at = generator.randrange(len(data))
    return data[:at] + data[at // 2 : at] + data[at:]


@pytest.mark.parametrize("kind", ["graph", "constants", "weights", "derived", "manifest"])
@pytest.mark.parametrize("how", [_flip, _cut, _repeat])
def test_a_section_that_was_forged_is_refused_or_is_a_model(
    tmp_path: Path, sound: Path, kind: str, how: Callable[[bytes, random.Random], bytes]
) -> None:
    """The digests fit: only what the section says can be judged. Manifests are not trusted."""
    generator = random.Random(f"{kind} {how.__name__}")
    path = tmp_path / "forged.frame"
    names = _section_names(sound, kind)
    assert names, f"the file has no section of the kind {kind}"
    for turn in range(12):
        name = names[turn % len(names)]
        _rewritten(sound, path, name, lambda data: how(data, generator))
        _outcome(path, trust=False)


@pytest.mark.parametrize("how", [_flip, _cut, _repeat])
def test_a_forged_manifest_of_a_trusted_file(
    tmp_path: Path, sound: Path, how: Callable[[bytes, random.Random], bytes]
) -> None:
    """A manifest has its own digest inside, so that no change of it is believed."""
    generator, path = random.Random(how.__name__), tmp_path / "forged.frame"
    for name in _section_names(sound, "manifest") * 5:
        _rewritten(sound, path, name, lambda data: how(data, generator))
        try:
            frame.load(path, trust=True)
        except FrameError as error:
            assert len(str(error)) > 20


def test_machine_code_that_was_exchanged_is_not_run_without_trust(
    tmp_path: Path, sound: Path, wanted: bytes
) -> None:
    """Objects full of traps: a model that ran one of them would end this process."""
    path = tmp_path / "forged.frame"
    source = sound
    for name in _section_names(sound, "object"):
        _rewritten(source, path, name, lambda data: data[:64] + b"\xcc" * (len(data) - 64))
        source = path
    default_cache().clear()
    _in_use.clear()
    assert _outcome(path, trust=False) == wanted
    # What was found in the file did not get into the cache either.
    _in_use.clear()
    assert _outcome(sound, trust=False) == wanted


def test_a_trusted_object_that_is_torn_is_refused_or_made_again(
    tmp_path: Path, sound: Path, wanted: bytes
) -> None:
    path = tmp_path / "forged.frame"
    for name in _section_names(sound, "object"):
        for keep in (0, 8, 40, 0.5):
            end = (
                (lambda data, k=keep: int(len(data) * k)) if keep == 0.5 else (lambda _, k=keep: k)
            )
            _rewritten(sound, path, name, lambda data, e=end: data[: e(data)])
            assert _outcome(path, trust=True) in (None, wanted)


SIGNATURES: dict[str, Callable[[dict], None]] = {
    "no entries": lambda h: h.update(entries=[]),
    "an entry of another kind": lambda h: h["entries"].append(3),
    "swapped graphs": lambda h: h["entries"][0].update(graph=h["entries"][1]["graph"]),
    "constants lost": lambda h: h["entries"][0].update(constants="weights"),
    "another backend": lambda h: h["entries"][0].update(backend="os.system"),
    "another target": lambda h: h["entries"][0].update(target="pdp-11"),
    "passes of nobody": lambda h: h["entries"][0].update(passes=["without everything"]),
    "passes of numbers": lambda h: h["entries"][0].update(passes=[1, None]),
    "options": lambda h: h["entries"][0].update(options={"fast": True}),
    "modules": lambda h: h["entries"][0].update(modules=[None, 3, []]),
    "parameters twice": lambda h: h["parameters"].append(h["parameters"][0]),
    "a parameter lost": lambda h: h["parameters"].pop(),
    "counter": lambda h: h.update(counter=[1 << 64, 0]),
    "a name": lambda h: h.update(name=None),
    "derived": lambda h: [o.update(derived="weights") for e in h["entries"] for o in e["objects"]],
    "artifacts": lambda h: [o.update(artifacts=[1]) for e in h["entries"] for o in e["objects"]],
    "manifest": lambda h: [
        o.update(manifest="weights") for e in h["entries"] for o in e["objects"]
    ],
    "objects": lambda h: [e.update(objects=7) for e in h["entries"]],
}


@pytest.mark.parametrize("trust", [False, True])
@pytest.mark.parametrize("name", SIGNATURES)
def test_a_forged_header_is_refused_or_is_a_model(
    tmp_path: Path, sound: Path, name: str, trust: bool
) -> None:
    data = sound.read_bytes()
    (length,) = struct.unpack("<Q", data[8:16])
    header = json.loads(data[48 : 48 + length])
    SIGNATURES[name](header)
    text = json.dumps(header).encode()
    path = tmp_path / "forged.frame"
    digest = hashlib.sha256(text).digest()
    path.write_bytes(data[:8] + struct.pack("<Q", len(text)) + digest + text + data[48 + length :])
    _outcome(path, trust)


def test_names_in_a_file_lead_nowhere(tmp_path: Path, sound: Path) -> None:
    """Sections are read by offset: a name that is a path opens no other file."""
    secret = tmp_path / "secret"
    secret.write_text("secret")
    data = sound.read_bytes()
    (length,) = struct.unpack("<Q", data[8:16])
    header = json.loads(data[48 : 48 + length])
    header["weights"] = str(secret)
    text = json.dumps(header).encode()
    digest = hashlib.sha256(text).digest()
    path = tmp_path / "forged.frame"
    path.write_bytes(data[:8] + struct.pack("<Q", len(text)) + digest + text + data[48 + length :])
    with pytest.raises(InvalidArgumentError, match="names the section.*which it does not have"):
        frame.load(path)
