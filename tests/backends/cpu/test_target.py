"""The CPU as data: the machine's own, named levels, masked virtual machines, odd systems."""

from __future__ import annotations

import pytest

from frame.backends.cpu import features as tables
from frame.backends.cpu.target import (
    host_architecture,
    host_caches,
    host_features,
    host_target,
    known_targets,
    named_target,
    parse_cpuinfo,
)
from frame.core import config
from frame.core.errors import InvalidArgumentError


def test_host_features_are_those_that_llvm_sees():
    binding = pytest.importorskip("llvmlite.binding")
    seen = {name for name, there in binding.get_host_cpu_features().items() if there}
    known = set(
        (tables.X86_64_FLAGS if host_architecture() == "x86_64" else tables.AARCH64_FLAGS).values()
    )
    assert host_features() == frozenset(seen & known)


def test_every_feature_name_is_known_to_llvm():
    binding = pytest.importorskip("llvmlite.binding")
    known = set(binding.get_host_cpu_features())
    if host_architecture() == "x86_64":
        assert set(tables.X86_64_FLAGS.values()) <= known


def test_known_14_the_key_holds_instruction_sets_only():
    text = host_target().text()
    assert "prefer" not in text and "tune" not in text and "slow" not in text
    assert text == host_target().text()


def test_known_15_frame_cpu_overrides_the_host():
    with config.override(FRAME_CPU="x86-64-v2"):
        if host_architecture() != "x86_64":
            pytest.skip("an x86-64 level")
        target = host_target()
    assert target.vector_bits == 128 and not target.fma and target.half == "none"
    assert "avx2" not in target.features
    assert target.text() != host_target().text()


def test_a_cpu_that_this_machine_can_not_run_is_refused():
    other = "armv8.2-a" if host_architecture() == "x86_64" else "x86-64-v3"
    with config.override(FRAME_CPU=other), pytest.raises(InvalidArgumentError, match="can run"):
        host_target()


def test_named_levels_are_complete():
    wide = named_target("x86-64-v4")
    assert (wide.vector_bits, wide.vector_registers, wide.cpu) == (512, 32, "x86-64-v4")
    arm = named_target("armv8.2-a")
    assert (arm.vector_bits, arm.vector_registers, arm.half) == (128, 32, "native")
    assert arm.fma and arm.triple.startswith("aarch64")
    assert {named_target(name).name for name in known_targets()} == set(known_targets())


def test_changes_take_what_stands_on_them_along():
    without = named_target("x86-64-v4,-avx2")
    assert not [name for name in without.features if name.startswith("avx512") or name == "avx2"]
    assert without.cpu == "x86-64-v2"
    added = named_target("x86-64-v2,+avx512f")
    assert {"avx", "avx2", "fma", "f16c", "avx512f"} <= set(added.features)


@pytest.mark.parametrize(
    "name", ["i386", "", "x86-64-v3,avx2", "x86-64-v3,+neon", "armv8-a,+avx2", "native,+", "x,y"]
)
def test_other_names_are_refused_with_the_known_ones(name):
    with pytest.raises(InvalidArgumentError, match="expected"):
        named_target(name)


def test_a_masked_machine_loses_what_stands_on_the_masked_flag():
    flags = "pni ssse3 sse4_1 sse4_2 avx avx2 fma f16c avx512f avx512bw avx512vl"
    text = f"processor : 0\nflags\t\t: {flags}\n"
    assert "avx512vl" in parse_cpuinfo(text, "x86_64")
    masked = parse_cpuinfo(text.replace(" fma", ""), "x86_64")
    assert "avx2" in masked and "avx512f" not in masked and "avx512vl" not in masked


def test_only_features_of_all_cores_count():
    text = "Features\t: fp asimd asimddp atomics\n\nFeatures\t: fp asimd atomics\n"
    assert parse_cpuinfo(text, "aarch64") == {"fp-armv8", "neon", "lse"}
    assert parse_cpuinfo("", "aarch64") == {"fp-armv8", "neon"}


def test_a_system_without_cpuinfo_gets_the_baseline(tmp_path):
    assert "avx" not in host_features(tmp_path / "absent")


def test_caches_are_read_and_fall_back(tmp_path):
    assert host_caches(tmp_path) == (32768, 524288, 4194304, 64)
    for index, (level, kind, size) in enumerate(
        [("1", "Data", "48K"), ("1", "Instruction", "32K"), ("2", "Unified", "2M"), ("x", "?", "?")]
    ):
        folder = tmp_path / f"index{index}"
        folder.mkdir()
        (folder / "level").write_text(level + "\n")
        (folder / "type").write_text(kind + "\n")
        (folder / "size").write_text(size + "\n")
        (folder / "coherency_line_size").write_text("128\n")
    assert host_caches(tmp_path) == (48 << 10, 2 << 20, 0, 128)
