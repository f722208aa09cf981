"""The cache on disk: what is damaged, foreign or not writable costs time and nothing else."""

from __future__ import annotations

import concurrent.futures
import hashlib
import logging
import os
import pickle
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from frame.core import config, sources
from frame.core.sources import tree_digest
from frame.runtime.cache import (
    _HEADER,
    ARTIFACT,
    KINDS,
    MANIFEST,
    Cache,
    default_cache,
    default_directory,
)
from tests.project import checkout
from tests.runtime.support import forget_programs, model, numbers, watched

KEY = hashlib.sha256(b"a key").hexdigest()

COMPILE = """
import logging, sys
logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(name)s %(message)s")
import numpy as np
import frame
from frame.runtime.statistics import compile_stats
model = frame.compile(lambda x, y: frame.ops.relu(x * 2.0 + y), [frame.spec(("batch", 4))] * 2)
x = np.arange(12, dtype=np.float32).reshape(3, 4) - 5
print(model(x, x).tobytes().hex(), *compile_stats().row())
"""


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and len(path.name) == 64)


def _process(folder: Path, **environment: str) -> tuple[str, list[int], str]:
    """Compile in a new process; return the result, what compilation did, and the log."""
    result = checkout.run_python("-c", COMPILE, folder=folder, path=checkout.ROOT, **environment)
    assert result.returncode == 0, result.stderr
    value, *counts = result.stdout.split()
    return value, [int(count) for count in counts], result.stderr


def _expect_rebuilt(cache_folder: Path, caplog) -> None:
    """The cache is of no use: the result is right, everything is compiled and stored again."""
    x = numbers(3, 4)
    forget_programs()
    with config.override(FRAME_CACHE_SIZE=str((1 << 30) + len(caplog.records) + 1)):
        with watched() as seen:
            np.testing.assert_array_equal(model()(x, x), np.maximum(x * 2 + x, 0))
        assert seen.stats.passes > 0
        forget_programs()
        with watched() as seen:
            np.testing.assert_array_equal(model()(x, x), np.maximum(x * 2 + x, 0))
        assert seen.stats.passes == 0 and seen.stats.manifests == 1


@pytest.mark.parametrize("kept", ["0", "1", "half", "len-1"])
@pytest.mark.parametrize("kind", KINDS)
def test_known_6_torn_files_are_rebuilt(cache_folder, caplog, kind: str, kept: str) -> None:
    model()
    for path in _files(cache_folder / "v2" / kind):
        data = path.read_bytes()
        size = {"0": 0, "1": 1, "half": len(data) // 2, "len-1": len(data) - 1}[kept]
        path.write_bytes(data[:size])
    _expect_rebuilt(cache_folder, caplog)
    warnings = [r for r in caplog.records if r.levelno == logging.WARNING and "cache" in r.name]
    assert warnings and "damaged" in warnings[0].getMessage()


def test_known_6_flipped_bits_are_found(cache_folder) -> None:
    cache = Cache(cache_folder)
    payload = bytes(range(256))
    cache.put(ARTIFACT, KEY, payload)
    (path,) = _files(cache_folder)
    sound = path.read_bytes()
    for position in range(0, len(sound), 7):
        torn = bytearray(sound)
        torn[position] ^= 1 << (position % 8)
        path.write_bytes(torn)
        assert cache.get(ARTIFACT, KEY) is None, position
    path.write_bytes(sound)
    assert cache.get(ARTIFACT, KEY) == payload


def test_a_file_of_another_kind_is_not_taken(cache_folder) -> None:
    cache = Cache(cache_folder)
    cache.put(MANIFEST, KEY, b"{}")
    (path,) = _files(cache_folder)
    other = cache_folder / ARTIFACT / KEY[:2] / KEY
    other.parent.mkdir(parents=True)
    other.write_bytes(path.read_bytes())
    assert cache.get(ARTIFACT, KEY) is None


def test_files_that_took_each_others_names_are_not_taken(cache_folder) -> None:
    """Else a cache that was restored wrongly would run the code of another graph."""
    cache, other = Cache(cache_folder), hashlib.sha256(b"another key").hexdigest()
    cache.put(ARTIFACT, KEY, b"one")
    cache.put(ARTIFACT, other, b"two")
    assert (cache.get(ARTIFACT, KEY), cache.get(ARTIFACT, other)) == (b"one", b"two")
    first, second = _files(cache_folder)
    contents = first.read_bytes(), second.read_bytes()
    second.write_bytes(contents[0])
    first.write_bytes(contents[1])
    assert cache.get(ARTIFACT, KEY) is cache.get(ARTIFACT, other) is None
    assert cache.verify() == (0, (first, second))


@pytest.mark.parametrize("length", [0, 1 << 40, (1 << 64) - 1])
def test_an_absurd_length_in_a_header_takes_no_memory(cache_folder, length: int) -> None:
    cache = Cache(cache_folder)
    cache.put(ARTIFACT, KEY, b"payload")
    (path,) = _files(cache_folder)
    magic, kind, _, digest = _HEADER.unpack_from(path.read_bytes())
    path.write_bytes(_HEADER.pack(magic, kind, length, digest) + b"payload")
    assert cache.get(ARTIFACT, KEY) is None


def test_a_manifest_with_a_sound_digest_but_foreign_content_is_a_miss(cache_folder, caplog) -> None:
    model()
    cache = default_cache()
    for content in (b"", b"[]", b"{}", b'{"version": 99}', b"\xff\xfe", b'{"version": 1}'):
        for path in _files(cache_folder / "v2" / MANIFEST):
            cache.put(MANIFEST, path.name, content)
        _expect_rebuilt(cache_folder, caplog)


def test_known_18_a_planted_pickle_is_never_read(cache_folder, tmp_path, caplog) -> None:
    class Bomb:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "exploded",))

    model()
    for path in _files(cache_folder):
        path.write_bytes(pickle.dumps(Bomb()))
    _expect_rebuilt(cache_folder, caplog)
    assert not (tmp_path / "exploded").exists()


def test_known_18_no_module_of_the_runtime_imports_pickle() -> None:
    for path in (checkout.ROOT / "frame" / "runtime").glob("*.py"):
        text = path.read_text("utf-8")
        assert "import pickle" not in text and "import marshal" not in text, path


def test_a_pipe_or_link_in_the_place_of_a_file_is_a_miss(cache_folder) -> None:
    cache = Cache(cache_folder)
    cache.put(ARTIFACT, KEY, b"payload")
    (path,) = _files(cache_folder)
    outside = cache_folder.parent / "outside"
    path.rename(outside)
    path.symlink_to(outside)
    assert cache.get(ARTIFACT, KEY) is None
    path.unlink()
    os.mkfifo(path)
    assert cache.get(ARTIFACT, KEY) is None
    path.unlink()
    path.mkdir()
    assert cache.get(ARTIFACT, KEY) is None


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
def test_known_18_a_folder_that_others_may_write_to_is_refused(cache_folder, caplog, mode) -> None:
    root = cache_folder / "v2"
    root.mkdir(parents=True)
    root.chmod(mode)
    x = numbers(3, 4)
    np.testing.assert_array_equal(model()(x, x), np.maximum(3 * x, 0))
    assert _files(cache_folder) == []
    assert sum("others may write" in r.getMessage() for r in caplog.records) == 1


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="needs root for chown")
def test_known_17_a_folder_of_another_user_is_refused(cache_folder, caplog) -> None:
    root = cache_folder / "v2"
    root.mkdir(parents=True)
    os.chown(root, 12345, 12345)
    x = numbers(3, 4)
    np.testing.assert_array_equal(model()(x, x), np.maximum(3 * x, 0))
    assert _files(cache_folder) == []
    assert any("another user" in r.getMessage() for r in caplog.records)


def test_known_17_folders_are_private(cache_folder) -> None:
    model()
    root = cache_folder / "v2"
    assert root.stat().st_mode & 0o077 == 0
    assert all(p.stat().st_mode & 0o022 == 0 for p in root.rglob("*") if p.is_dir())


def test_a_link_in_the_place_of_the_folder_is_refused(cache_folder, tmp_path, caplog) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    cache_folder.mkdir()
    (cache_folder / "v2").symlink_to(elsewhere)
    model()
    assert _files(elsewhere) == []
    assert any("not a directory" in r.getMessage() for r in caplog.records)


def test_known_16_an_unwritable_home_costs_one_warning(tmp_path) -> None:
    home = {"HOME": "/proc/nowhere", "XDG_CACHE_HOME": "/proc/nowhere", "FRAME_CACHE_DIR": ""}
    value, counts, log = _process(tmp_path, **home)
    assert counts[0] > 0 and log.count("frame.cache") == 1
    assert value == _process(tmp_path, FRAME_CACHE_DIR=str(tmp_path / "c"))[0]


def test_known_16_memory_serves_where_the_disk_can_not(cache_folder) -> None:
    cache_folder.write_text("a file in the place of the folder")
    model()
    with watched() as seen:
        model()
    assert seen.stats.passes == 0


def test_a_read_only_cache_is_read_and_not_changed(cache_folder) -> None:
    model()
    before = {path: path.stat().st_mtime_ns for path in _files(cache_folder)}
    forget_programs()
    with config.override(FRAME_CACHE="readonly"):
        with watched() as seen:
            model()
        assert seen.stats.passes == 0
        model(lambda x, y: x - y)
    assert {path: path.stat().st_mtime_ns for path in _files(cache_folder)} == before


def test_without_a_cache_everything_is_compiled(cache_folder) -> None:
    with config.override(FRAME_CACHE="0"):
        for _ in range(2):
            with watched() as seen:
                model()
            assert seen.stats.passes > 0 and seen.stats.compiled == 1
    assert not cache_folder.exists()


def test_known_14_the_second_process_hits(tmp_path) -> None:
    value, counts, _ = _process(tmp_path, FRAME_CACHE_DIR=str(tmp_path / "c"))
    assert counts[0] > 0 and counts[1] == 1
    again, counts, _ = _process(tmp_path, FRAME_CACHE_DIR=str(tmp_path / "c"))
    assert again == value
    assert counts == [0, 0, 1, 1, 0]


@pytest.mark.slow
def test_known_8_and_10_processes_share_an_empty_cache_with_eviction_on(tmp_path) -> None:
    settings = {"FRAME_CACHE_DIR": str(tmp_path / "c"), "FRAME_CACHE_SIZE": "2000"}
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: _process(tmp_path, **settings), range(8)))
    assert len({value for value, _, _ in found}) == 1
    assert all("Traceback" not in log for _, _, log in found)


def test_known_7_writers_and_readers_of_one_key(cache_folder) -> None:
    payloads = [bytes([k]) * 50_000 for k in range(4)]

    def work(index: int) -> None:
        cache = Cache(cache_folder, limit=120_000)
        for _ in range(10):
            cache.put(ARTIFACT, KEY, payloads[index % 4])
            found = cache.get(ARTIFACT, KEY)
            assert found is None or found in payloads

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert [p.name for p in cache_folder.rglob("*") if p.is_file() and p.name != KEY] == []


WRITE = """
import sys
from pathlib import Path
from frame.runtime.cache import Cache
cache = Cache(Path(sys.argv[1]))
print("ready", flush=True)
while True:
    for k in range(16):
        cache.put("artifact", f"{k:064x}", bytes([k]) * 300_000)
"""


READ = """
import sys, time
from pathlib import Path
from frame.runtime.cache import Cache
cache, end, seen = Cache(Path(sys.argv[1])), time.monotonic() + 1.0, 0
while time.monotonic() < end:
    for k in range(16):
        found = cache.get("artifact", f"{k:064x}")
        assert found is None or found == bytes([k]) * 300_000
        seen += found is not None
print(seen)
"""


def test_known_7_processes_write_keys_that_another_reads(tmp_path) -> None:
    folder = tmp_path / "cache"
    environment = os.environ | {"PYTHONPATH": str(checkout.ROOT)}
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITE, str(folder)], stdout=subprocess.PIPE, env=environment
        )
        for _ in range(2)
    ]
    try:
        for writer in writers:
            writer.stdout.readline()
        result = checkout.run_python("-c", READ, str(folder), folder=tmp_path, path=checkout.ROOT)
    finally:
        for writer in writers:
            writer.kill()
            writer.wait()
            writer.stdout.close()
    assert result.returncode == 0 and "damaged" not in result.stderr, result.stderr
    assert int(result.stdout) > 0


def test_known_10_a_writer_that_is_killed_leaves_no_half_file(tmp_path) -> None:
    folder = tmp_path / "cache"
    environment = os.environ | {"PYTHONPATH": str(checkout.ROOT)}
    for round_ in range(3):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITE, str(folder)], stdout=subprocess.PIPE, env=environment
        )
        process.stdout.readline()
        time.sleep(0.05 + 0.03 * round_)
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
    sound, damaged = Cache(folder).verify()
    assert damaged == () and sound > 0


def test_eviction_takes_what_was_not_used_for_longest(cache_folder) -> None:
    cache = Cache(cache_folder, limit=10_000)
    keys = [hashlib.sha256(bytes([k])).hexdigest() for k in range(8)]
    for age, key in enumerate(keys[:7]):
        cache.put(ARTIFACT, key, bytes(1300))
        path = cache_folder / ARTIFACT / key[:2] / key
        os.utime(path, (1_000_000 + age, 1_000_000 + age))
    assert cache.get(ARTIFACT, keys[0]) is not None  # the oldest becomes the youngest
    cache.put(ARTIFACT, keys[7], bytes(1300))
    left = {path.name for path in _files(cache_folder)}
    assert keys[0] in left and keys[7] in left and keys[1] not in left
    assert sum(path.stat().st_size for path in _files(cache_folder)) <= 8_000


def test_known_12_every_source_that_decides_code_is_in_the_key() -> None:
    """All of frame but what only declares, trains, reads data or talks to people."""
    from frame.backends.cpu import backend
    from frame.runtime import versions

    outside = {"nn", "blueprint", "data", "train", "interop", "frontend", "cli"}
    folders = {path.name for path in (checkout.ROOT / "frame").iterdir() if path.is_dir()}
    assert folders - outside - {"__pycache__"} == set(versions._SOURCES)
    hashed: list[Path] = []
    with pytest.MonkeyPatch.context() as patch:
        for module in (backend, versions):
            digest = lambda roots, start="": hashed.extend(map(Path, roots)) or "0"  # noqa: E731
            patch.setattr(module, "tree_digest", digest)
        backend._source_hash.__wrapped__()
        versions.compiler_hash.__wrapped__()
    names = {path.resolve().relative_to(checkout.ROOT).as_posix() for path in hashed}
    assert {"codegen", "backends/cpu"} <= names
    assert {f"frame/{name}" for name in versions._SOURCES} <= names


def test_known_12_an_edited_compiler_source_changes_the_key(tmp_path, monkeypatch) -> None:
    root = tmp_path / "frame" / "compiler"
    root.mkdir(parents=True)
    (root / "a.py").write_text("x = 1\n")
    (root / "b.py").write_text("y = 1\n")
    first = tree_digest([root])
    assert tree_digest([root]) == first
    (root / "a.py").write_text("x = 2\n")
    os.utime(root / "a.py", ns=(1, 1))
    second = tree_digest([root])
    (root / "b.py").rename(root / "c.py")
    assert len({first, second, tree_digest([root])}) == 3


# What only a miss needs; each stands for everything below it.
COMPILING = (
    "llvmlite", "cffi", "pycparser", "logging", "pathlib", "secrets", "difflib", "tempfile",
    "importlib.metadata", "tomllib", "platformdirs", "ml_dtypes",
    "safetensors", "frame.codegen.loops", "frame.codegen.schedules", "frame.codegen.emit",
    "frame.codegen.mathlib", "frame.codegen.lowering", "frame.compiler", "frame.runtime.stages",
    "frame.runtime.partition", "frame.runtime.eager", "frame.runtime.framefile", "frame.interop",
    "frame.ir.parser", "frame.ir.verify", "frame.ir.plan", "frame.ops.stubs", "frame.cli",
    "frame.backends.cpu.compiling", "frame.backends.cpu.profile", "frame.backends.intel_npu",
)  # fmt: skip

WARM = """
import sys
before = set(sys.modules)  # an editable install imports modules of its own when Python starts
import numpy as np, frame
from frame import nn
mlp = nn.Sequential("mlp", [nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)])
model = frame.compile(mlp, [frame.spec(("batch", 8))])
assert model(np.ones((3, 8), np.float32)).shape == (3, 4)
print(*sorted(set(sys.modules) - before))
"""


def test_known_28_a_warm_start_imports_nothing_that_only_a_miss_needs(tmp_path) -> None:
    def loaded() -> set[str]:
        settings = {"FRAME_CACHE_DIR": str(tmp_path / "cache")}
        result = checkout.run_python("-c", WARM, folder=tmp_path, path=checkout.ROOT, **settings)
        assert result.returncode == 0, result.stderr
        names = result.stdout.splitlines()[-1].split()
        return {row for row in COMPILING if any(f"{n}.".startswith(f"{row}.") for n in names)}

    assert {"llvmlite", "frame.compiler", "frame.codegen.lowering"} <= loaded(), "a miss compiles"
    assert loaded() == set()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere platformdirs is asked")
@pytest.mark.parametrize("base", [None, "", "  ", "relative/folder", "/some where/caché", " /x/ "])
def test_the_folder_is_the_one_that_platformdirs_names(monkeypatch, tmp_path, base) -> None:
    import platformdirs

    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    if base is not None:
        monkeypatch.setenv("XDG_CACHE_HOME", base)
    expected = Path(platformdirs.user_cache_dir("frame"))
    with config.override(FRAME_CACHE_DIR=None):
        assert Path(default_directory()) == expected


def test_the_digest_of_sources_is_remembered_while_no_file_changes(tmp_path, monkeypatch) -> None:
    root = tmp_path / "package"
    root.mkdir()
    (root / "a.py").write_text("x = 1\n")
    cache = Cache(tmp_path / "cache")
    monkeypatch.setattr(sources, "_find_memo", lambda: cache.artifacts("sources"))
    first = tree_digest([root])
    assert cache.counters.writes["sources"] == 0, "a file that changed just now is not remembered"
    monkeypatch.setattr(sources, "_SETTLED", 0)
    assert tree_digest([root]) == first
    assert cache.counters.writes["sources"] == 1
    with monkeypatch.context() as patch:
        patch.setattr(sources, "_digest", lambda files, start: pytest.fail("the files are read"))
        assert tree_digest([root]) == first
    status = (root / "a.py").stat()
    (root / "a.py").write_text("x = 2\n")  # of the same length, with the old time stamp
    os.utime(root / "a.py", ns=(status.st_atime_ns, status.st_mtime_ns))
    second = tree_digest([root])
    assert second != first
    (root / "b.py").write_text("")
    assert len({first, second, tree_digest([root]), tree_digest([root], "1.1")}) == 4


@pytest.mark.parametrize("planted", [b"", b"short", b"\xff" * 64])
def test_a_torn_memo_of_sources_is_not_believed(tmp_path, monkeypatch, planted: bytes) -> None:
    root = tmp_path / "package"
    root.mkdir()
    (root / "a.py").write_text("x = 1\n")
    expected = tree_digest([root])
    cache = Cache(tmp_path / "cache")
    monkeypatch.setattr(sources, "_find_memo", lambda: cache.artifacts("sources"))
    monkeypatch.setattr(sources, "_SETTLED", 0)
    assert tree_digest([root]) == expected
    (path,) = (entry.path for entry in cache.entries())
    path.write_bytes(planted)
    assert tree_digest([root]) == expected


def test_known_28_where_the_time_of_a_warm_start_goes(tmp_path) -> None:
    """A report: import, cache and first call of a second process, in milliseconds; not a gate."""
    code = (
        "import time; a = time.perf_counter()\nimport numpy\nb = time.perf_counter()\n"
        + COMPILE.replace("print(", "c = time.perf_counter(); print(")
        + "import json, sys\nprint(json.dumps({'numpy': 1e3 * (b - a), 'frame': 1e3 * (c - b)}))\n"
        "print('llvmlite' in sys.modules, 'click' in sys.modules, 'rich' in sys.modules)"
    )
    settings = {"FRAME_CACHE_DIR": str(tmp_path / "c"), "PYTHONDONTWRITEBYTECODE": ""}
    for _ in range(2):
        result = checkout.run_python("-c", code, folder=tmp_path, path=checkout.ROOT, **settings)
        assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1] == "False False False"
    print(result.stdout)


def test_the_header_is_what_the_documentation_says(cache_folder) -> None:
    Cache(cache_folder).put(ARTIFACT, KEY, b"payload")
    (path,) = _files(cache_folder)
    data = path.read_bytes()
    assert data[:8] == b"FRAMEC1\n" and data[8:16] == b"artifact"
    assert struct.unpack("<Q", data[16:24]) == (7,) and data[56:] == b"payload"
