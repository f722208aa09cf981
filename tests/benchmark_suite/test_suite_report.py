"""The arithmetic of ratios, the rows, the tables and the options of the suite."""

import html.parser
import json

import numpy as np
import pytest

from benchmarks import measuring
from benchmarks.suite import command, limits, report, run
from benchmarks.suite.cases import CASES
from benchmarks.suite.peers.base import NotSupportedError, Prepared
from benchmarks.suite.start import start_table


def test_the_ratio_is_paired_round_by_round():
    times = {"frame": [1.0, 10.0, 2.0], "peer": [2.0, 10.0, 6.0], "slow": [9.0, 90.0, 18.0]}
    assert measuring.ratio(times, "peer") == 2.0  # of 2, 1 and 3; that of the medians is 3
    assert measuring.best_other(times) == "peer"
    assert measuring.best_other({"frame": [1.0]}) is None


def test_rounds_are_interleaved_with_one_call_before_each_window(monkeypatch):
    monkeypatch.setattr(measuring, "repeats_for", lambda run, seconds: 2)
    calls = []
    runs = {"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}
    times = measuring.interleaved(runs, rounds=2, pause=0.0)
    assert "".join(calls) == "aaabbb" * 2
    assert [len(side) for side in times.values()] == [2, 2]


def test_repeats_fill_the_window_within_bounds():
    assert measuring.repeats_for(lambda: None, 1.0) == measuring.MOST_REPEATS
    assert measuring.repeats_for(lambda: None, 0.0) == 1


def row(case="a", group="inference", ratio=2.0, **more):
    base = {"case": case, "group": group, "threads": 1, "how": {"torch": "eager"}}
    times = {"ms": {"frame": 1.0, "torch": ratio}, "best": "torch", "best_ms": ratio}
    return {**base, **times, "ratio": ratio, "not_supported": {}, "failed": {}, **more}


def test_geometric_means_by_group_and_of_all():
    rows = [row(ratio=2.0), row(ratio=8.0), row(group="convolution", ratio=0.5)]
    rows.append({**row(), "ratio": 1.0, "group": "absent peer"})
    del rows[-1]["ratio"]
    assert report.geometric_mean([2.0, 8.0]) == pytest.approx(4.0)
    assert report.geometric_mean([]) is None
    means = {group: (count, round(mean, 6)) for group, count, mean in report.means(rows)}
    assert means == {
        "convolution": (1, 0.5),
        "inference": (2, 4.0),
        "whole suite": (3, 2.0),
    }


def test_markdown_holds_every_case_and_every_gap():
    gap = {"numpy": "no convolution"}
    failed = {"jax": "differs | by 2"}
    rows = [
        row("one", gflops=12.3, share_of_peak=0.5, not_supported=gap),
        row("two", failed=failed),
    ]
    text = report.markdown(rows, {"fno": "no transform"}, {1: {"fma_gflops": 100.0}})
    assert "| one | 1 | torch | 2 | 2.00 | 12.3 | 50 % |  |" in text
    assert "| numpy | no convolution | one |" in text
    assert "FAILED: differs \\| by 2" in text
    assert "| fno | no transform |" in text
    assert "| fma_gflops | 100.0 |" in text
    widths = {}
    for line in text.splitlines():
        if line.startswith("|"):
            widths.setdefault(line.replace("\\|", "").count("|"), line)
    assert "## 1 thread" in text


def test_a_case_of_a_few_microseconds_shows_its_kernel():
    assert report.cells(row("add", kernel_us=0.25))[0] == "add (kernel 0.25 us)"
    bare = {"case": "x", "group": "inference", "threads": 1, "failed": {"frame": "boom"}}
    assert report.cells(bare) == ("x", "", "", "", "", "", "", "")


class Tags(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.rows, self.slow = [], 0

    def handle_starttag(self, tag, attrs):
        if tag == "tr":
            self.rows.append("")
            self.slow += ("class", "slow") in attrs

    def handle_data(self, data):
        if self.rows:
            self.rows[-1] += data


def test_the_page_escapes_and_marks_what_is_behind():
    tags = Tags()
    tags.feed(report.page([row("<b>", ratio=0.5), row("fine")], {}, {}))
    assert any("<b>" in text for text in tags.rows)
    assert tags.slow == 2  # in its group and among the worst


# --- rows -----------------------------------------------------------------------------------------


def peers_of(**outputs):
    """An adapter table whose peers return arrays; None is a peer that refuses."""

    def adapter(peer):
        def prepare(instance, threads):
            if outputs[peer] is None:
                raise NotSupportedError("not here")
            result = np.asarray(outputs[peer], np.float32)
            return Prepared(lambda: result, lambda: [result], "fake", lambda: 1e-6)

        return prepare

    return adapter


SETTINGS = run.Settings(("same", "wrong", "shape", "none"), 1, 3, 0.0)


def test_a_row_names_what_is_wrong_and_times_the_rest(monkeypatch):
    adapter = peers_of(frame=[1.0, 2.0], same=[1.0, 2.0], wrong=[1.0, 2.5], shape=[1.0], none=None)
    monkeypatch.setattr(run, "adapter", adapter)
    monkeypatch.setattr(run, "peak_gflops", lambda threads: 100.0)
    measured = run.measure(CASES[0], SETTINGS)
    assert set(measured["ms"]) == {"frame", "same"}
    assert measured["best"] == "same"
    assert measured["peak_gflops"] == 100.0
    assert measured["not_supported"] == {"none": "not here"}
    assert "2.50e-01" in measured["failed"]["wrong"]
    assert "shape" in measured["failed"]["shape"]
    assert measured["kernel_us"] == 1.0
    json.dumps(measured)


def test_a_check_times_nothing(monkeypatch):
    monkeypatch.setattr(run, "adapter", peers_of(frame=[1.0], same=[1.0]))
    measured = run.measure(CASES[0], run.Settings(("same",), 1, 3, 0.0), timed=False)
    assert "ms" not in measured


def test_not_a_number_is_a_failure(monkeypatch):
    monkeypatch.setattr(run, "adapter", peers_of(frame=[1.0], same=[np.nan]))
    measured = run.measure(CASES[0], run.Settings(("same",), 1, 3, 0.0), timed=False)
    assert "same" in measured["failed"]


# --- the command ----------------------------------------------------------------------------------


def test_thread_counts():
    assert command.thread_counts("1,all,1", 4) == [1, 4]
    assert command.thread_counts("3", 4) == [3]
    for text in ("0", "5"):
        with pytest.raises(ValueError, match="from 1 to 4"):
            command.thread_counts(text, 4)


def test_the_environment_sets_every_pool(monkeypatch):
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Prescott")
    made = command.environment(3)
    assert {made[name] for name in command.THREAD_VARIABLES} == {"3"}
    assert "OPENBLAS_CORETYPE" not in made


def test_the_last_row_of_a_case_counts(tmp_path):
    lines = [
        {"limits": {"fma_gflops": 9.0}, "threads": 1},
        row("a", ratio=1.0),
        row("a", ratio=3.0),
    ]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    rows, found = command.read_rows(tmp_path / "rows.jsonl")
    assert [entry["ratio"] for entry in rows] == [3.0]
    assert found == {1: {"fma_gflops": 9.0}}
    command.write_tables(tmp_path)
    assert "| a | 1 | torch | 3 | 3.00 |" in (tmp_path / "table.md").read_text(encoding="utf-8")
    assert "<table>" in (tmp_path / "table.html").read_text(encoding="utf-8")


def test_the_list_names_the_absent(capsys):
    assert command.main(["--list"]) == 0
    text = capsys.readouterr().out
    assert "fno1d" in text
    assert "resnet50_b8" in text


def test_the_table_of_the_start():
    cold = {"import_seconds": 0.1, "first_result_seconds": 0.5, "peak_mb_above_declaration": 20.0}
    rows = [
        {"start": "mlp", "peer": "frame", "cold": cold, "warm": cold, "installed_mb": 170.0},
        {
            "start": "mlp",
            "peer": "x",
            "cold": {"not_supported": "no"},
            "warm": {},
            "installed_mb": None,
        },
    ]
    lines = start_table(rows).splitlines()
    assert lines[2] == "| mlp | frame | 0.1 | 0.5 | 0.5 | 20.0 | 170.0 |"
    assert lines[3] == "| mlp | x |  | no |  |  |  |"


def test_the_limits_of_the_machine_are_those_that_profiles_know(monkeypatch):
    monkeypatch.setattr(limits, "peak_gflops", lambda threads: 10.0 * threads)
    monkeypatch.setattr(limits, "bandwidth", lambda kernel, size, threads: size / 1024)
    assert limits.limits(2) == {
        "fma_gflops": 20.0,
        "triad_l1_gb": 24.0,
        "triad_l2_gb": 384.0,
        "triad_memory_gb": 96.0 * 1024,
        "read_memory_gb": 96.0 * 1024,
    }
