"""How many threads a pool gets: control group quotas from fake files, affinity, settings."""

from __future__ import annotations

import os

import pytest

from frame.backends.cpu import threads
from frame.core import config


def group(root, path, **files):
    folder = root / "sys/fs/cgroup" / path
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("_", ".", 1)).write_text(text)


def membership(root, text):
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(text)


def test_no_files_mean_no_limit(tmp_path):
    assert threads.cgroup_quota(tmp_path) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("200000 100000\n", 2.0),
        ("150000 100000\n", 1.5),
        ("max 100000\n", None),
        ("", None),
        ("nonsense\n", None),
        ("1 0\n", None),
        ("-1 100000", None),
    ],
)
def test_known_22_pool_size_follows_quota(tmp_path, monkeypatch, text, expected):
    membership(tmp_path, "0::/\n")
    group(tmp_path, "", cpu_max=text)
    assert threads.cgroup_quota(tmp_path) == expected
    monkeypatch.setattr(threads, "cgroup_quota", lambda: expected)
    monkeypatch.setattr(threads, "affinity", lambda: 64)
    with config.override(FRAME_NUM_THREADS=None, OMP_NUM_THREADS=None):
        assert threads.default_threads() == {2.0: 2, 1.5: 2, None: 64}[expected]


def test_the_smallest_limit_of_all_ancestors_counts(tmp_path):
    membership(tmp_path, "0::/slice/service/leaf\n")
    group(tmp_path, "slice", cpu_max="300000 100000")
    group(tmp_path, "slice/service", cpu_max="max 100000")
    group(tmp_path, "slice/service/leaf", cpu_max="800000 100000")
    assert threads.cgroup_quota(tmp_path) == 3.0


def test_a_container_that_sees_the_paths_of_its_host(tmp_path):
    membership(tmp_path, "0::/../../kubepods/pod7/box\n")
    group(tmp_path, "", cpu_max="400000 100000")
    assert threads.cgroup_quota(tmp_path) == 4.0


@pytest.mark.parametrize("mount", ["cpu", "cpu,cpuacct"])
def test_version_1(tmp_path, mount):
    membership(tmp_path, "4:memory:/box\n3:cpu,cpuacct:/box\n1:cpuset:/\n")
    group(tmp_path, f"{mount}/box")
    folder = tmp_path / "sys/fs/cgroup" / mount / "box"
    (folder / "cpu.cfs_quota_us").write_text("250000\n")
    (folder / "cpu.cfs_period_us").write_text("100000\n")
    assert threads.cgroup_quota(tmp_path) == 2.5
    (folder / "cpu.cfs_quota_us").write_text("-1\n")
    assert threads.cgroup_quota(tmp_path) is None


def test_the_settings_come_first(monkeypatch):
    monkeypatch.setattr(threads, "affinity", lambda: 2)
    with config.override(FRAME_NUM_THREADS="7", OMP_NUM_THREADS="5"):
        assert threads.default_threads() == 7
    with config.override(FRAME_NUM_THREADS=None, OMP_NUM_THREADS="5"):
        assert threads.default_threads() == 5


def test_affinity_is_that_of_this_process():
    if hasattr(os, "sched_getaffinity"):
        assert threads.affinity() == len(os.sched_getaffinity(0))
    assert 1 <= threads.available_cpus() <= (os.cpu_count() or 1)
