"""`frame train`: what it prints, and the exit codes."""

from __future__ import annotations

import json

import numpy as np
import pytest

import frame
from frame.cli import main
from tests.frontend.specs import EXAMPLES, edited, tiny_mlp

SPEC = str(EXAMPLES / "tiny_mlp.json")


@pytest.fixture
def short(tmp_path):
    """A spec of three steps, in a file."""
    path = tmp_path / "short.json"
    path.write_text(json.dumps(edited(tiny_mlp(), "training", "steps", value=3)))
    return str(path)


def test_check_names_the_model(capsys) -> None:
    assert main(["train", SPEC, "--check"]) == 0
    assert capsys.readouterr().out == "OK tiny_mlp\n"


def test_check_as_json_tells_what_was_found(capsys) -> None:
    assert main(["train", SPEC, "--check", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ok"] and found["model"] == "tiny_mlp"
    assert (found["rows"], found["steps"], found["parameters"]) == (8, 300, 32 + 64 + 8)


def test_training_prints_the_lines_of_the_format(short, capsys) -> None:
    assert main(["train", short]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines[:2]] == [["step", "0"], ["step", "2"]]
    assert lines[0].startswith("step 0 loss 0.43104")
    assert lines[2].startswith("final_loss ")
    name, _, values = lines[3].partition(" = ")
    assert name == "predictions" and len(values.split()) == 8


def test_training_as_json_is_one_object_on_standard_output(short, tmp_path, capsys) -> None:
    output = str(tmp_path / "short.frame")
    assert main(["train", short, "--json", "-o", output]) == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert found["steps"] == 3 and len(found["loss_history"]) == 3 and found["files"] == [output]
    assert "step 0 loss" in captured.err
    x = np.asarray(frame.frontend.load(short).columns()[0])
    np.testing.assert_array_equal(frame.load(output)(x), np.float32(found["predictions"]))


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (("training", "seed", -1), "training.seed: expected an integer from 0"),
        (("extra", 1), "extra: expected no such key"),
        (("schema_version", 9), "schema_version: expected"),
    ],
)
def test_a_wrong_spec_fails_with_the_file_and_the_field(edit, message, tmp_path, capsys) -> None:
    path = tmp_path / "wrong.json"
    path.write_text(json.dumps(edited(tiny_mlp(), *edit[:-1], value=edit[-1])))
    for words in (["--check"], []):
        assert main(["train", str(path), *words]) == 1
        captured = capsys.readouterr()
        assert captured.out == "" and message in captured.err
        assert str(path) in captured.err.replace("\n  ", "")


def test_a_missing_file_fails(capsys) -> None:
    assert main(["train", "none.json"]) == 1
    assert "there is no file none.json" in capsys.readouterr().err
