"""LLVM as an assembler: good text compiles, bad text raises, and the process survives."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from frame.backends.cpu import elf, llvm
from frame.backends.cpu.target import host_target, named_target
from frame.core.errors import InternalError

ADD = "define i64 @add(i64 %a, i64 %b) nounwind { %c = add i64 %a, %b\n ret i64 %c }"


@pytest.fixture
def target():
    return host_target()


@pytest.mark.parametrize("level", [0, 1, 2, 3])
def test_every_level_gives_a_self_contained_object(target, level):
    data = llvm.compile_ir(ADD, target, level)
    assert data[:4] == b"\x7fELF"
    assert elf.undefined_symbols(data) == ()


def test_same_text_gives_same_bytes(target):
    assert llvm.compile_ir(ADD, target) == llvm.compile_ir(ADD, target)


def test_every_level_of_every_architecture_compiles():
    for name in ("x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4", "armv8-a", "armv8.2-a"):
        assert elf.parse(llvm.compile_ir(ADD, named_target(name))).symbols


def test_assembly_uses_the_features_of_the_target():
    text = """define <8 x float> @f(<8 x float> %a, <8 x float> %b, <8 x float> %c) {
      %r = call <8 x float> @llvm.fma.v8f32(<8 x float> %a, <8 x float> %b, <8 x float> %c)
      ret <8 x float> %r }
    declare <8 x float> @llvm.fma.v8f32(<8 x float>, <8 x float>, <8 x float>)"""
    assert "vfmadd" in llvm.assembly(text, named_target("x86-64-v3"))
    with pytest.raises(InternalError, match="fma"):  # a library call without the feature
        llvm.compile_ir(text, named_target("x86-64-v2"))


def test_vectorisers_are_off(target):
    text = """define void @f(ptr noalias %a, ptr noalias %b) nounwind {
    entry: br label %loop
    loop:
      %i = phi i64 [ 0, %entry ], [ %n, %loop ]
      %p = getelementptr float, ptr %a, i64 %i
      %v = load float, ptr %p
      %w = fadd float %v, 1.0
      %q = getelementptr float, ptr %b, i64 %i
      store float %w, ptr %q
      %n = add i64 %i, 1
      %c = icmp eq i64 %n, 4096
      br i1 %c, label %exit, label %loop
    exit: ret void }"""
    assert "x float>" not in llvm.optimised_ir(text, target)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("this is not IR", "parse"),
        ("", None),
        ("define i64 @f() { ret i32 0 }", "parse"),
        ("define i64 @f() { %x = add i64 %y, 1\n %y = add i64 %x, 1\n ret i64 %x }", "verifier"),
        ('define void @f() { call void asm "nop", ""()\n ret void }', "asm"),
        ('module asm "nop"', "asm"),
        ("define i256 @f(i256 %x) { %y = sdiv i256 %x, %x\n ret i256 %y }", "i256"),
        ("declare void @puts(ptr)", "puts"),
        (
            "define <vscale x 4 x i32> @f(<vscale x 4 x i32> %x) { ret <vscale x 4 x i32> %x }",
            "vsc",
        ),
        ("declare i64 @llvm.x86.unknown.thing(i64)", "llvm.x86.unknown"),
        ("declare void @llvm.aarch64.hint(i32)", "aarch64"),
    ],
)
def test_bad_text_raises_and_names_the_reason(text, message):
    target = named_target("x86-64-v2")
    if message is None:
        assert elf.parse(llvm.compile_ir(text, target)).machine.name == "x86-64"
        return
    with pytest.raises(InternalError, match=message):
        llvm.compile_ir(text, target)


def test_an_intrinsic_without_its_feature_is_refused():
    text = """declare <8 x i32> @llvm.x86.avx2.psrlv.d.256(<8 x i32>, <8 x i32>)
    define <8 x i32> @f(<8 x i32> %a) {
      %r = call <8 x i32> @llvm.x86.avx2.psrlv.d.256(<8 x i32> %a, <8 x i32> %a)
      ret <8 x i32> %r }"""
    assert llvm.compile_ir(text, named_target("x86-64-v3"))
    with pytest.raises(InternalError, match="psrlv"):
        llvm.compile_ir(text, named_target("x86-64-v2"))


def test_refused_words_may_stand_in_names_and_strings(target):
    text = """; asm in a comment, i999 too
    @asm = internal constant [4 x i8] c"asm\\00"
    define i8 @gc(i64 %i256) nounwind { %vscale = getelementptr i8, ptr @asm, i64 %i256
      %musttail = load i8, ptr %vscale
      ret i8 %musttail }"""
    assert llvm.compile_ir(text, target)


def test_a_half_conversion_without_f16c_is_refused_not_linked():
    text = "define half @f(float %x) { %y = fptrunc float %x to half\n ret half %y }"
    with pytest.raises(InternalError, match="__truncsfhf2"):
        llvm.compile_ir(text, named_target("x86-64-v2"))
    assert llvm.compile_ir(text, named_target("x86-64-v3"))


def test_known_27_straight_line_code_compiles_in_bounded_work(target):
    """8192 straight-line operations: the SLP vectoriser, five times the whole cost, stays off."""
    lines = [f"%v{i + 1} = fadd float %v{i}, %a" for i in range(8192)]
    text = "define float @f(float %a, float %v0) nounwind {\n" + "\n".join(lines)
    assert elf.parse(llvm.compile_ir(text + "\nret float %v8192 }", target)).symbols


def test_known_27_straight_line_code_is_not_vectorised_behind_our_back(target):
    """Eight equal operations on neighbours: what the SLP vectoriser would make one vector of."""
    lines = []
    for i in range(8):
        lines += [
            f"%a{i} = getelementptr float, ptr %a, i64 {i}",
            f"%b{i} = getelementptr float, ptr %b, i64 {i}",
            f"%x{i} = load float, ptr %a{i}",
            f"%y{i} = fadd float %x{i}, %x{i}",
            f"store float %y{i}, ptr %b{i}",
        ]
    body = "\n".join(lines)
    text = f"define void @f(ptr noalias %a, ptr noalias %b) nounwind {{\n{body}\nret void }}"
    for level in (1, 2, 3):
        made = llvm.optimised_ir(text, target, level)
        assert made.count("fadd float") == 8 and "x float>" not in made


def test_threads_may_compile_together(target):
    results: list[bytes] = []
    threads = [
        threading.Thread(target=lambda: results.append(llvm.compile_ir(ADD, target)))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 8 and len(set(results)) == 1


def test_a_fork_during_compiles_leaves_a_child_that_can_compile(target):
    stop = threading.Event()

    def compile_on():
        while not stop.is_set():
            llvm.compile_ir(ADD, target)

    thread = threading.Thread(target=compile_on)
    thread.start()
    try:
        for _ in range(5):
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    status = 0 if llvm.compile_ir(ADD, target)[:4] == b"\x7fELF" else 2
                finally:
                    os._exit(status)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        stop.set()
        thread.join()


def test_loading_needs_no_llvmlite():
    code = (
        "import sys, frame.backends.cpu.elf, frame.backends.cpu.llvm\n"
        "from frame.backends.cpu.target import host_target\n"
        "host_target()\n"
        "assert not [name for name in sys.modules if name.startswith('llvmlite')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
