"""Compiled pieces for AArch64, run by an emulator of the processor.

The object is placed by the loader of the cpu backend, with the arrays of a run and the pool's own
code (compiled for the same target, without workers) around it. Either the package unicorn runs the
image in this process, or qemu-aarch64 runs it as a program, which knows SVE.
"""

from __future__ import annotations

import functools
import shutil
import struct
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from frame.backends.cpu import elf
from frame.backends.cpu.compiling import Stages
from frame.backends.cpu.llvm import compile_ir
from frame.backends.cpu.pool_ir import pool_module
from frame.backends.cpu.target import named_target
from frame.core.shapes import bind_shape
from tests.support.compile import Compiled

CODE, POOL_CODE, START, HEAP = 0x1000_0000, 0x2000_0000, 0x3000_0000, 0x4000_0000
STACK = 1 << 20
GUARD = 256  # bytes between arrays that nothing may touch
FILL = 0xA5
PAGE = 0x1000
VECTORS = 3 << 20  # of CPACR_EL1: floats and vectors are not trapped


class Heap:
    """The memory of one run: arrays one after the other, with guards between them."""

    def __init__(self) -> None:
        self.image = bytearray()

    def place(self, data: bytes) -> int:
        """Append bytes and return their address."""
        self.image += bytes([FILL]) * GUARD
        self.image += bytes([FILL]) * (-len(self.image) % 64)
        address = HEAP + len(self.image)
        self.image += data
        return address

    def words(self, values: Sequence[int]) -> int:
        """Append 64-bit words and return their address."""
        return self.place(struct.pack(f"<{len(values)}q", *values))

    def close(self) -> None:
        """End with a guard and a whole page."""
        self.image += bytes([FILL]) * GUARD
        self.image += bytes([FILL]) * (-len(self.image) % PAGE)


@dataclass(frozen=True)
class Program:
    """What an emulator runs: code by address, the heap, and how the entry is called."""

    code: Mapping[int, bytes]
    heap: bytes
    entry: int
    context: int


def run_unicorn(program: Program) -> tuple[int, bytes]:
    """Run in this process; return the entry's result and the heap after it."""
    unicorn = pytest.importorskip("unicorn", reason="there is no wheel of unicorn here")
    machine = unicorn.Uc(unicorn.UC_ARCH_ARM64, unicorn.UC_MODE_ARM)
    machine.ctl_set_cpu_model(unicorn.arm64_const.UC_CPU_ARM64_MAX)
    for base, image in {**program.code, HEAP: program.heap + bytes(STACK)}.items():
        machine.mem_map(base, len(image) + PAGE & -PAGE)
        machine.mem_write(base, image)
    names = unicorn.arm64_const
    control = machine.reg_read(names.UC_ARM64_REG_CPACR_EL1)
    machine.reg_write(names.UC_ARM64_REG_CPACR_EL1, control | VECTORS)
    machine.reg_write(names.UC_ARM64_REG_X0, program.context)
    machine.reg_write(names.UC_ARM64_REG_LR, START)
    machine.reg_write(names.UC_ARM64_REG_SP, HEAP + len(program.heap) + STACK - 64)
    machine.emu_start(program.entry, START)
    return machine.reg_read(names.UC_ARM64_REG_X0), bytes(machine.mem_read(HEAP, len(program.heap)))


def qemu() -> str | None:
    """Return the path of the user-mode emulator, None where it is not installed."""
    return shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")


def run_qemu(program: Program, folder: Path, cpu: str) -> tuple[int, bytes]:
    """Run as a program of its own, on a CPU such as `max,sve256=on`."""
    path = folder / "program"
    path.write_bytes(_executable(program))
    path.chmod(0o700)
    command = [qemu() or "", "-cpu", cpu, str(path)]
    done = subprocess.run(command, capture_output=True, timeout=120, check=False)
    assert done.returncode in (0, 1) and len(done.stdout) == len(program.heap), done
    return done.returncode, done.stdout


def _executable(program: Program) -> bytes:
    """Return a static ELF program: it calls the entry, writes the heap, and exits."""
    literals = (program.context, program.entry, HEAP, len(program.heap))
    loads = ((0, 0, 0), (1, 9, 1), (5, 1, 2), (6, 2, 3))  # instruction, register, literal
    words = [0, 0, 0xD63F0120, 0xAA0003F3, 0xD2800020, 0, 0]  # blr x9; mov x19, x0; mov x0, 1
    words += [0xD2800808, 0xD4000001]  # mov x8, 64 (write); svc
    words += [0xAA1303E0, 0xD2800BA8, 0xD4000001]  # mov x0, x19; mov x8, 93 (exit); svc
    for place, register, literal in loads:
        distance = len(words) - place + 2 * literal
        words[place] = 0x58000000 | distance << 5 | register
    start = struct.pack(f"<{len(words)}I4Q", *words, *literals)
    segments = {**program.code, START: start, HEAP: program.heap}
    head = struct.pack(
        "<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", 2, 183, 1, START, 64, 0, 0, 64, 56,
        len(segments), 64, 0, 0,
    )  # fmt: skip
    table, body = b"", b""
    for base, data in segments.items():
        offset = PAGE + len(body)
        table += struct.pack("<IIQQQQQQ", 1, 7, offset, base, base, len(data), len(data), PAGE)
        body += data + bytes(-len(data) % PAGE)
    return (head + table).ljust(PAGE, b"\0") + body


# --- making a program of a piece ------------------------------------------------------------------


class Emulation:
    """A piece for AArch64, its inputs, and the program that runs it once."""

    def __init__(
        self, compiled: Compiled, arrays: Sequence[np.ndarray], bindings: Mapping[str, int]
    ) -> None:
        artifact = Stages(compiled.piece, compiled.target).artifact()
        code, symbols = _placed(artifact.objects, CODE)
        pool, functions = _placed((_pool_object(),), POOL_CODE)
        types = [port.type for port in compiled.piece.signature.outputs]
        self.outputs = [
            np.zeros(bind_shape(t.storage_shape, bindings), t.dtype.numpy) for t in types
        ]
        heap = Heap()
        arrays = [*arrays, *self.outputs]
        self.sizes = [array.nbytes for array in arrays]
        self.places = [heap.place(array.tobytes()) for array in arrays]
        self.status, context = _context(compiled, heap, functions, self.places, bindings)
        heap.close()
        program_code = {CODE: code, POOL_CODE: pool}
        self.program = Program(program_code, bytes(heap.image), symbols[artifact.entry], context)

    def results(self, failed: int, heap: bytes) -> tuple[list[np.ndarray], Any]:
        """Return the outputs and what was reported of bad indices (site, position, value) or None.

        Fails where something between the arrays was written.
        """
        for place, size in zip(self.places, self.sizes, strict=True):
            for start in (place - HEAP - GUARD, place - HEAP + size):
                guard = slice(start, start + GUARD // 2)
                assert heap[guard] == self.program.heap[guard], "a guard was written"
        rows = zip(self.outputs, self.places[-len(self.outputs) :], strict=True)
        found = [
            np.frombuffer(heap, o.dtype, o.size, place - HEAP).reshape(o.shape) for o, place in rows
        ]
        words = struct.unpack_from("<4q", heap, self.status - HEAP)
        return found, words[1:] if failed else None


@functools.cache
def _pool_object() -> bytes:
    return compile_ir(pool_module("aarch64"), named_target("armv8-a"))


def _placed(objects: Sequence[bytes], base: int) -> tuple[bytes, dict[str, int]]:
    file = elf.link([elf.parse(data) for data in objects])
    layout = elf.plan(file)
    image = bytearray(layout.size)
    elf.place(file, layout, base, image)
    return bytes(image), elf.exports(file, layout, base)


def _context(
    compiled: Compiled,
    heap: Heap,
    functions: Mapping[str, int],
    places: Sequence[int],
    bindings: Mapping[str, int],
) -> tuple[int, int]:
    """Place the words that an entry reads; return the addresses of status and context."""
    symbols = compiled.piece.signature.symbols
    filled = compiled.piece.plan.fill(bindings)
    status, pool = heap.words([0] * 4), heap.place(bytes(1 << 14))
    arena = heap.place(bytes(max(filled.arena_size, 64)))
    words = [pool, functions["frame_launch"], functions["frame_fail"], status, arena]
    words += [heap.words([*places, 0]), heap.words([*(bindings[name] for name in symbols), 0])]
    words += [heap.words([*filled.offsets, 0]), 0, functions["frame_clock"], 0, 0]
    return status, heap.words(words)
