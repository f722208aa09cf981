"""All that native code of an executable can call: its own functions and two short tables.

No BLAS, no vendor library, no numpy kernel: objects have no undefined symbol, the pool's code gets
the addresses of some functions of the C library, the gates those of Python's own object calls.
"""

from __future__ import annotations

import ctypes
import os

import pytest

from frame import nn
from frame.backends.cpu import elf, gate
from frame.backends.cpu.executable import Artifact, CpuExecutable
from frame.backends.cpu.gate_ir import API
from frame.backends.cpu.pool import _host_words, pool_object
from frame.backends.cpu.pool_ir import HOST
from frame.runtime.model import compile as compile_model
from frame.runtime.specs import spec
from frame.train import SGD

LIBC = {
    "clock_gettime", "syscall", "sched_yield", "pthread_mutex_lock", "pthread_mutex_unlock",
    "pthread_cond_wait", "pthread_cond_broadcast",
}  # fmt: skip
# A clock, and calls of the system that go through `syscall`.
NUMBERS = {"clock_id", "futex", "getcpu", "sched_getaffinity", "sched_setaffinity"}
# Python: make and drop objects, give the lock away, call on. numpy: the type of arrays, and its
# function that makes an empty one.
OBJECTS = {
    "array_type", "new_array", "none", "tuple_new", "tuple_set", "retain", "drop", "save_thread",
    "restore_thread", "call",
}  # fmt: skip
LIBRARIES = ("libc.", "libpthread", "ld-linux", "ld-musl", "[vdso]", "linux-vdso")


class Found(ctypes.Structure):
    _fields_ = [
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    ]


def library_of(address: int) -> str:
    """Return the file that an address belongs to."""
    found = Found()
    dladdr = ctypes.CDLL(None).dladdr
    assert dladdr(ctypes.c_void_p(address), ctypes.byref(found)), hex(address)
    return os.path.basename(found.file.decode())


@pytest.fixture(scope="module")
def executables() -> list[CpuExecutable]:
    """The executables of inference and training of a network with products and convolutions."""
    layers = [nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
    net = nn.Sequential("net", [*layers, nn.Linear(36, 16), nn.GELU(), nn.Linear(16, 10)])
    model = compile_model(
        net,
        [spec((4, 1, 8, 8))],
        loss=nn.CrossEntropyLoss(),
        targets=[spec((4,), "int64")],
        optimizer=SGD(),
    )
    programs = [model.entry(name).loaded for name in ("infer", "train_step")]
    both = [part for loaded in programs for part in (loaded.run, loaded.load) if part is not None]
    return [piece.executable for program in both for piece in program.pieces]


def test_an_executable_needs_nothing_from_outside_its_object(executables) -> None:
    assert len(executables) >= 2
    for executable in executables:
        objects = Artifact.from_bytes(executable.serialize()).objects
        needed = {name for data in objects for name in elf.undefined_symbols(data)}
        # It exports its entry and its kernels; all else is inside.
        kernels = {info.kernel for info in executable.artifact.launches}
        loaded = set(elf.load(*objects).symbols)
        assert needed <= loaded and (len(objects) > 1 or not needed)
        assert executable.artifact.entry in loaded and kernels <= loaded


def test_the_pool_calls_these_functions_of_the_c_library_alone() -> None:
    assert elf.undefined_symbols(pool_object()) == ()
    assert set(HOST) == LIBC | NUMBERS
    words = _host_words()
    assert set(words) == set(HOST)
    for name in LIBC:
        assert library_of(words[name]).startswith(LIBRARIES), name


def test_gates_call_python_and_the_maker_of_arrays_alone() -> None:
    assert set(API) == OBJECTS
    try:
        table = gate._api()
    except (gate.GateUnavailable, AttributeError, ValueError) as problem:
        pytest.skip(f"this interpreter has no gates: {problem}")
    assert set(table) == OBJECTS
    for name, word in table.items():
        library = library_of(word)
        makers = name in ("array_type", "new_array") and "multiarray" in library
        assert makers or library.startswith(("python", "libpython")), (name, library)
