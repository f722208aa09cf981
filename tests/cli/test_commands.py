"""The commands that compile, run and show models, and the cache."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from frame.cli import main

ADD = ["user_models:add_relu", "--input", "y=batch,4", "--input", "x=batch,4"]


def _json(capsys: pytest.CaptureFixture[str]) -> dict:
    return json.loads(capsys.readouterr().out)


def test_compile_reports_the_signature(folder: Path, capsys) -> None:
    assert main(["compile", *ADD, "--json"]) == 0
    found = _json(capsys)
    assert [port["name"] for port in found["inputs"]] == ["x", "y"]
    assert {port["type"] for port in found["inputs"]} == {"float32[batch, 4]"}
    assert found["symbols"] == ["batch"] and found["from_cache"] is False


def test_the_second_compile_comes_from_the_cache(folder: Path, capsys) -> None:
    for expected in (False, True):
        assert main(["compile", *ADD, "--json"]) == 0
        assert _json(capsys)["from_cache"] is expected


def test_compile_for_people_names_inputs_and_time(folder: Path, capsys) -> None:
    for done in (
        r"compiled +in \d+\.\d+ s",
        r"loaded +in \d+\.\d+ s from the cache, nothing was comp",
    ):
        assert main(["compile", *ADD]) == 0
        text = capsys.readouterr().out
        assert "x: float32[batch, 4]" in text and re.search(f"^{done}", text, re.MULTILINE)


@pytest.mark.parametrize("reference", ["user_models:negate", "user_models:jitted"])
def test_a_single_input_needs_no_name(folder: Path, capsys, reference: str) -> None:
    assert main(["compile", reference, "--input", "3x4:float64", "--json"]) == 0
    assert _json(capsys)["inputs"] == [{"name": "x", "type": "float64[3, 4]"}]


def test_inspect_prints_a_graph_that_compile_reads(folder: Path, capsys) -> None:
    assert main(["inspect", *ADD, "--graph"]) == 0
    (folder / "graph.txt").write_text(capsys.readouterr().out)
    assert main(["compile", "graph.txt", "--json"]) == 0
    assert [port["name"] for port in _json(capsys)["inputs"]] == ["x", "y"]
    assert main(["compile", "graph.txt", "--input", "x=3"]) == 2
    assert "a graph has its own inputs" in capsys.readouterr().err


def test_a_graph_text_with_parameters_takes_their_values_from_a_file(folder: Path, capsys) -> None:
    assert main(["inspect", "user_models:network", "--input", "x=batch,4", "--graph"]) == 0
    (folder / "graph.txt").write_text(capsys.readouterr().out)
    assert main(["inspect", "graph.txt", "--json"]) == 0  # its code is that of any values
    assert _json(capsys)["parameters"] == 58
    assert main(["compile", "graph.txt"]) == 0
    assert main(["compile", "graph.txt", "-o", "net.frame"]) == 1
    assert "the graph network has 4 parameters" in capsys.readouterr().err
    shapes = {"0.weight": (4, 8), "0.bias": (8,), "2.weight": (8, 2), "2.bias": (2,)}
    values = {f"network.{name}": np.ones(shape, np.float32) for name, shape in shapes.items()}
    np.savez("values.npz", **values)
    np.save("x.npy", np.ones((3, 4), np.float32))
    assert main(["compile", "graph.txt", "--params", "values.npz", "-o", "net.frame"]) == 0
    assert main(["run", "net.frame", "--input", "x.npy", "-o", "y.npy"]) == 0
    assert np.array_equal(np.load("y.npy"), np.full((3, 2), 41, np.float32))


@pytest.mark.parametrize(("stage", "mark"), [("loop", "kernel"), ("llvm", "define")])
def test_inspect_prints_generated_code(folder: Path, capsys, stage: str, mark: str) -> None:
    assert main(["inspect", *ADD, "--source", stage]) == 0
    assert mark in capsys.readouterr().out
    assert main(["inspect", *ADD, "--source", stage, "--json"]) == 0
    assert mark in _json(capsys)["source"]


def test_inspect_prints_the_code_of_one_node(folder: Path, capsys) -> None:
    network = ["user_models:network", "--input", "x=batch,4"]
    texts = []
    for more in ([], ["--node", "network.2"], ["--node", "network.0"]):
        assert main(["inspect", *network, "--source", "loop", *more]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[1] != texts[2] and all(0 < len(text) < len(texts[0]) for text in texts[1:])
    assert main(["inspect", *network, "--node", "network.2"]) == 2
    assert "--source assembly" in capsys.readouterr().err
    assert main(["inspect", *network, "--source", "loop", "--node", "network.7"]) == 1
    assert "nearest: network.2" in capsys.readouterr().err


def test_profile_shows_rates_and_modules(folder: Path, capsys) -> None:
    words = ["profile", "user_models:network", "--input", "x=batch,4", "--runs", "2"]
    assert main([*words, "--size", "batch=3"]) == 0
    text = capsys.readouterr().out
    heads = ("kernel", "module", "time", "share", "GFLOP/s", "GB/s", "roofline")
    assert tuple(text.split()[:7]) == heads and "network.0" in text and "median of 2" in text
    assert main([*words, "--size", "batch=3", "--json"]) == 0
    rows = _json(capsys)["rows"]
    assert all(row["roofline"] > 0 and row["gigabytes"] > 0 for row in rows)
    assert sum(row["flops"] for row in rows) >= 2 * 3 * (4 * 8 + 8 * 2)
    for wrong, expected in (
        ([], "missing --size for batch"),
        (["--size", "batch"], "a symbol and a number"),
        (["--size", "batch=3", "--size", "n=3"], "no such symbol; the symbols are batch"),
    ):
        assert main([*words, *wrong]) == 2
        assert expected in capsys.readouterr().err


def test_profile_reads_a_file(saved: Path, capsys) -> None:
    assert main(["profile", "model.frame", "--size", "batch=2", "--json"]) == 0
    assert _json(capsys)["runs"] == 11


def test_inspect_names_the_stages(folder: Path, capsys) -> None:
    assert main(["inspect", *ADD, "--source", "bytecode"]) == 2
    assert "loop" in capsys.readouterr().err


def test_cache_info_verify_clear(folder: Path, capsys) -> None:
    assert main(["compile", *ADD]) == 0
    capsys.readouterr()
    assert main(["cache", "info", "--json"]) == 0
    info = _json(capsys)
    assert info["mode"] == "on" and info["manifests"] == 1 and info["size"] > 0
    assert main(["cache", "verify", "--json"]) == 0
    assert _json(capsys) == {"sound": info["files"], "damaged": []}
    assert main(["cache", "clear", "--json"]) == 0
    assert _json(capsys)["removed"] == info["files"]
    assert main(["cache", "info"]) == 0
    assert "0 B" in capsys.readouterr().out


def test_cache_verify_finds_a_damaged_file(folder: Path, capsys) -> None:
    assert main(["compile", *ADD]) == 0
    victim = next(path for path in (folder / "cache").rglob("*") if path.is_file())
    victim.write_bytes(victim.read_bytes()[:-1])
    capsys.readouterr()
    assert main(["cache", "verify"]) == 1
    assert str(victim) in capsys.readouterr().out


def test_doctor_shows_the_cache_and_counts_each_file_once(folder: Path, capsys) -> None:
    assert main(["compile", *ADD]) == 0
    capsys.readouterr()
    main(["doctor", "--json"])
    found = _json(capsys)["cache"]
    files = [path for path in (folder / "cache").rglob("*") if path.is_file()]
    assert found["folder"].startswith(str(folder / "cache"))
    assert found["files"] == found["sound"] == len(files) > 0 and found["damaged"] == 0
    kinds = ("manifests", "artifacts", "digests of sources")
    assert sum(found[name] for name in kinds) == len(files)
    main(["doctor"])
    text = capsys.readouterr().out
    assert f"{len(files)}: manifests 1, " in text and "every file is sound" in text
    files[0].write_bytes(b"")
    main(["doctor"])
    assert "1 of the files are damaged: frame cache verify names them" in capsys.readouterr().out


@pytest.mark.parametrize("trust", [[], ["--trust"]])
def test_run_saves_what_the_model_computes(saved: Path, capsys, trust: list[str]) -> None:
    assert main(["run", "model.frame", "--input", "x=x.npy", "-o", "y.npy", *trust]) == 0
    assert np.array_equal(np.load("y.npy"), -np.load("x.npy"))
    assert main(["run", "model.frame", "--input", "x.npy", "-o", "y.npz"]) == 0
    [array] = np.load("y.npz").values()
    assert np.array_equal(array, -np.load("x.npy"))


def test_run_prints_json(saved: Path, capsys) -> None:
    assert main(["run", "model.frame", "--input", "x.npy", "--json"]) == 0
    [output] = _json(capsys)["outputs"].values()
    assert output["values"] == (-np.load("x.npy")).tolist()
    assert output["shape"] == [2, 4] and output["min"] == -7


def test_run_shows_outputs_to_people(saved: Path, capsys) -> None:
    assert main(["run", "model.frame", "--input", "x.npy"]) == 0
    assert "float32[2, 4]" in capsys.readouterr().out


def test_inspect_reads_a_file(saved: Path, capsys) -> None:
    assert main(["inspect", "model.frame", "--json"]) == 0
    assert _json(capsys)["inputs"] == [{"name": "x", "type": "float32[batch, 4]"}]
    assert main(["inspect", "model.frame", "--input", "3"]) == 2
    assert "leave out --input" in capsys.readouterr().err


def test_inspect_shows_the_parameters_under_heads_that_fit(folder: Path, capsys) -> None:
    """The modules are known before a model is saved; a file knows the parameters alone."""
    words = ["user_models:network", "--input", "batch,4"]
    assert main(["inspect", *words]) == 0
    text = capsys.readouterr().out
    assert re.search(r"^path +module +own parameters +elements$", text, re.MULTILINE)
    assert re.search(
        r"^network\.0 +Linear\(.*\) +weight\(4, 8\), bias\(8,\) +40$", text, re.MULTILINE
    )
    assert main(["compile", *words, "-o", "network.frame"]) == 0
    capsys.readouterr()
    assert main(["inspect", "network.frame"]) == 0
    text = capsys.readouterr().out
    assert re.search(r"^parameter +dtype +shape +elements$", text, re.MULTILINE)
    assert re.search(r"^network\.0\.weight +float32 +\(4, 8\) +32$", text, re.MULTILINE)
    assert text.count("float32[batch, 4]") == 1 and text.count("58") == 1  # nothing is said twice
