"""What a user may get wrong on the command line: one readable block, and the exit code of its kind.

2 is for a command that can't be meant; 1 for one that can, whose work failed: a file is missing or
damaged, the shapes do not fit, the user's own code raises.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from frame.cli import app, main
from frame.core import config

NEGATE = ["compile", "user_models:negate", "--input", "batch,4"]
NETWORK = ["compile", "user_models:network", "--input", "batch,4"]
RUN = ["run", "model.frame", "--input"]

WRONG: list[tuple[list[str], str]] = [
    (["--nope"], "No such option '--nope'"),
    (["complie"], "did you mean 'compile'?"),
    (["nonsense"], "see demo, compile, run"),
    (["train"], "Missing argument 'SPEC'"),
    (["train", "spec.json", "-o", "model.txt"], "expected a name that ends in .frame"),
    (["train", "spec.json", "--check", "-o", "model.frame"], "nothing to save"),
    (["train", "spec.json", "--backend", "gpu9"], "--backend: there is no backend named"),
    (["emit", "spec.json"], "Missing option '--out'"),
    (["emit", "spec.json", "--out", "p", "--rows", "2"], "add --no-train"),
    (["emit", "spec.json", "--out", "p", "--rows", "0", "--no-train"], "0 is not in the range"),
    (["bench"], "python -m benchmarks.suite"),
    (["compile"], "Missing argument 'MODEL'"),
    (["compile", "user_models:negate"], "missing --input"),
    (["compile", "user_models:negate", "--input"], "requires an argument"),
    ([*NEGATE, "extra"], "unexpected extra argument"),
    (["compile", "user_models:negate", "--input", "x"], "expected dimensions such as"),
    (["compile", "user_models:negate", "--input", "x=-3"], "expected"),
    (["compile", "user_models:negate", "--input", "3:float3"], "expected one of the dtypes"),
    (["compile", "user_models:negate", "--input", "9" * 30], "too large"),
    (["compile", "user_models:add_relu", "--input", "3"], "needs a name"),
    (["compile", "user_models:add_relu", "--input", "x=3"], "missing --input for y"),
    (["compile", "user_models:add_relu", "--input", "x=3", "--input", "z=3"], "no input 'z'"),
    (["compile", "user_models:add_relu", "--input", "x=3", "--input", "x=3"], "given twice"),
    (["compile", "user_models:network", "--input", "a=3", "--input", "4"], "need names"),
    ([*NEGATE, "--backend", "gpu9"], "--backend: there is no backend named 'gpu9'; known"),
    ([*NEGATE, "--backend", ""], "--backend: expected a value, received an empty text"),
    ([*NEGATE, "--target", "z80"], "--target: expected a CPU of native"),
    ([*NEGATE, "--target", "native,+mmx9"], "--target: expected a change such as +avx2"),
    ([*NEGATE, "--target", ""], "--target: expected a value, received an empty text"),
    ([*NEGATE, "--seed", "-1"], "expected an integer from 0 to 2**64 - 1, received '-1'"),
    ([*NEGATE, "--seed", "one"], "expected an integer from 0 to 2**64 - 1, received 'one'"),
    ([*NEGATE, "-o", "model.txt"], "expected a name that ends in .frame"),
    ([*NEGATE, "-o", ""], "expected a name that ends in .frame"),
    ([*NEGATE, "-o", "folder.frame"], "is a directory"),
    (["compile", "user_models"], "expected package.module:factory"),
    (["compile", "user_models:"], "expected package.module:factory"),
    (["compile", "model.frame"], "`frame run` takes a .frame file"),
    (["compile", "user_models:nothing", "--input", "3"], "received None"),
    (["run"], "Missing argument 'FILE'"),
    (["run", "model.frame"], "missing --input for x"),
    ([*RUN, "z=x.npy"], "no input 'z'"),
    ([*RUN, "x.npy", "--input", "x.npy"], "given twice"),
    ([*RUN, "image.png"], "expected an array file"),
    ([*RUN, "arrays.npz"], "images.npz:member"),
    ([*RUN, "x.npy", "-o", "y.txt"], "ends in .npy or .npz"),
    ([*RUN, "x.npy", "-o", "folder.frame"], "is a directory"),
    (["inspect"], "Missing argument 'MODEL'"),
    (["inspect", "model.frame", "--backend", "cpu"], "leave out --input and --backend"),
    (["inspect", "model.frame", "--source", "zzz"], "the stages are loop, llvm, assembly"),
    (["inspect", *NEGATE[1:], "--backend", "gpu9"], "no backend named 'gpu9'"),
    (["doctor", "extra"], "unexpected extra argument"),
    (["cache", "nothing"], "No such command 'nothing'"),
    (["demo", "--seed", "x"], "from 0 to 2**63 - 1, received 'x'"),
]

FAILED: list[tuple[list[str], str]] = [
    (["compile", "user_models:absent", "--input", "3"], "no 'absent'"),
    (["compile", "no_models:absent", "--input", "3"], "no module 'no_models'"),
    (["compile", "user_models:leaves", "--input", "3"], "failed with SystemExit: 3"),
    (["compile", "user_models:fails", "--input", "3"], "name 'missing' is not defined"),
    (["compile", "user_models:endless", "--input", "3"], "RecursionError: maximum recursion"),
    (["compile", "user_models:add_relu", "--input", "x=3", "--input", "y=4"], "not broadcast"),
    (["compile", "user_models:network", "--input", "1x5"], "inner sizes 5 and 4 differ"),
    (["compile", "absent.txt"], "no file absent.txt"),
    (["compile", "empty.txt"], "line 1, column 1: expected 'graph'"),
    (["compile", "model.onnx"], "does not read ONNX"),
    ([*NETWORK, "--params", "absent.npz"], "no weight file absent.npz"),
    ([*NETWORK, "--params", "torn.npz"], "torn.npz"),
    ([*NETWORK, "--params", "x.npy"], "ends in .safetensors or .npz"),
    ([*NEGATE, "-o", "absent/model.frame"], "does not exist"),
    ([*NEGATE, "-o", "/proc/model.frame"], "nothing was written: /proc/model.frame"),
    (["run", "absent.frame", "--input", "x.npy"], "no file absent.frame"),
    (["run", "torn.frame", "--input", "x.npy"], "torn.frame"),
    (["run", "empty.frame"], "it is empty"),
    (["run", "user_models.py"], "does not begin as such a file does"),
    ([*RUN, "absent.npy"], "no file absent.npy"),
    ([*RUN, "wrong.npy"], "expected float32[batch, 4], received shape [2, 5]"),
    ([*RUN, "arrays.npz:absent"], "no member 'absent'; it has rows"),
    ([*RUN, "torn.npz:rows"], "torn.npz is not a readable array file"),
    ([*RUN, "text.npz:rows"], "text.npz is not a readable array file: it is none"),
    ([*RUN, "one.npz:rows"], "received a file of one array"),
    ([*RUN, "x.npy", "-o", "absent/y.npy"], "no folder absent"),
    ([*RUN, "x.npy", "-o", "/proc/y.npy"], "nothing was written: /proc/y.npy"),
    (["inspect", "absent.frame"], "no file absent.frame"),
]


@pytest.fixture
def files(saved: Path) -> Path:
    """Return a folder with a sound model, and files that are damaged in one way or another."""
    np.save("wrong.npy", np.zeros((2, 5), np.float32))
    np.savez("arrays.npz", rows=np.arange(8.0))
    data = Path("arrays.npz").read_bytes()
    at = data.index(b"\x93NUMPY") + 100
    Path("torn.npz").write_bytes(data[:at] + b"?" + data[at + 1 :])
    Path("text.npz").write_text("no archive at all")
    Path("one.npz").write_bytes(Path("x.npy").read_bytes())
    Path("torn.frame").write_bytes(Path("model.frame").read_bytes()[:40])
    for name in ("empty.frame", "empty.txt"):
        Path(name).touch()
    Path("folder.frame").mkdir()
    return saved


CASES = [(words, 2, said) for words, said in WRONG] + [(words, 1, said) for words, said in FAILED]


def _one_block(capsys: pytest.CaptureFixture[str], message: str) -> str:
    captured = capsys.readouterr()
    assert captured.out == "" and "Traceback" not in captured.err
    assert captured.err.startswith("error: ") and captured.err.count("error: ") == 1
    assert message in captured.err and "bug in frame" not in captured.err
    return captured.err


def test_every_mistake_is_one_block_with_the_exit_code_of_its_kind(files: Path, capsys) -> None:
    assert len(CASES) > 70
    for words, code, message in CASES:
        assert main(words) == code, words
        text = _one_block(capsys, message)
        assert ".tmp" not in text, "the name of a temporary file says nothing to anybody"
    assert not list(files.glob(".*"))


def test_the_users_own_line_is_named(files: Path, capsys) -> None:
    assert main(["compile", "user_models:fails", "--input", "3"]) == 1
    text = _one_block(capsys, "building the model failed with NameError")
    assert "user_models.py:" in text and "return x + missing" in text


def test_a_result_that_can_not_be_written_leaves_the_old_one(files: Path, capsys, monkeypatch):
    Path("y.npy").write_bytes(b"precious")

    def full(file, array):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "save", full)
    assert main([*RUN, "x.npy", "-o", "y.npy"]) == 1
    _one_block(capsys, "No space left on device; the file that was there is unchanged: y.npy")
    assert Path("y.npy").read_bytes() == b"precious" and not list(files.glob(".*"))


def test_commands_to_come_are_not_on_the_help_page(capsys) -> None:
    from frame.cli.words import INSTEAD

    assert not set(INSTEAD) & set(app.COMMANDS)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("FRAME_CACHE", "yes"),
        ("FRAME_CACHE_SIZE", "big"),
        ("FRAME_NUM_THREADS", "x"),
        ("FRAME_CPU", "z80"),
        ("FRAME_BACKEND", "gpu9"),
        ("FRAME_DEBUG", "x"),
        ("FRAME_GRAIN", "0"),
        ("FRAME_POOL_WAIT", "spin"),
    ],
)
def test_doctor_names_a_setting_that_can_not_be_meant(
    folder: Path, capsys, monkeypatch, name: str, text: str
) -> None:
    from frame.runtime import backends

    monkeypatch.setattr(backends, "_loaded", {})
    monkeypatch.setenv(name, text)
    assert main(["doctor"]) == 1
    report = capsys.readouterr().out
    said = report[report.index("problems\n") :]
    assert f"{name}: expected" in said and text in said
    assert max(map(len, report.splitlines())) <= 100


def test_a_backend_from_the_environment_is_named_as_such(folder: Path, capsys, monkeypatch) -> None:
    monkeypatch.setenv("FRAME_BACKEND", "gpu9")
    with config.override(FRAME_CACHE="0"):
        assert main(NEGATE) == 2
    _one_block(capsys, "FRAME_BACKEND: there is no backend named 'gpu9'; known backends: cpu")
