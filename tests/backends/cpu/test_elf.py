"""The loader: right addresses for good objects, an error for every bad one, never a crash."""

from __future__ import annotations

import ctypes
import gc
import random
import struct
import threading
import weakref

import pytest

from frame.backends.cpu import elf, llvm
from frame.backends.cpu.target import host_architecture, host_target, named_target
from frame.core.errors import InternalError, NotFoundError

MODULE = """
@table = constant [4 x i64] [i64 10, i64 20, i64 30, i64 40]
@counter = global i64 3
@scratch = global [64 x i64] zeroinitializer, align 64
@pointer = global ptr @counter
define i64 @lookup(i64 %i) nounwind noinline {
  %p = getelementptr i64, ptr @table, i64 %i
  %v = load i64, ptr %p
  %q = getelementptr i64, ptr @scratch, i64 %i
  store i64 %v, ptr %q
  %old = load i64, ptr @counter
  %new = add i64 %old, %v
  store i64 %new, ptr @counter
  ret i64 %new }
define i64 @switch(i64 %x) nounwind {
  switch i64 %x, label %other [ i64 0, label %a i64 1, label %b i64 2, label %c i64 3, label %d
    i64 4, label %e ]
a: %ra = call i64 @lookup(i64 1)
  ret i64 %ra
b: ret i64 77
c: %rc = mul i64 %x, 9
  ret i64 %rc
d: %rd = call i64 @lookup(i64 3)
  ret i64 %rd
e: ret i64 -5
other: ret i64 0 }
define double @constant(double %x) nounwind { %y = fadd double %x, 1.5
  ret double %y }
"""


@pytest.fixture(scope="module")
def data() -> bytes:
    return llvm.compile_ir(MODULE, host_target())


def function(loaded, name, result=ctypes.c_int64, *arguments):
    return ctypes.CFUNCTYPE(result, *(arguments or (ctypes.c_int64,)))(loaded.symbol(name))


def word(address):
    return ctypes.c_int64.from_address(address)


def test_code_constants_and_data_work_together(data):
    loaded = elf.load(data)
    assert loaded.symbols == (
        "constant",
        "counter",
        "lookup",
        "pointer",
        "scratch",
        "switch",
        "table",
    )
    assert function(loaded, "lookup")(2) == 33
    assert word(loaded.symbol("counter")).value == 33
    assert word(loaded.symbol("scratch") + 16).value == 30
    assert loaded.symbol("scratch") % 64 == 0
    assert word(loaded.symbol("pointer")).value == loaded.symbol("counter")
    assert function(loaded, "constant", ctypes.c_double, ctypes.c_double)(2.0) == 3.5


def test_jump_tables_work(data):
    loaded = elf.load(data)
    switch = function(loaded, "switch")
    assert [switch(value) for value in (1, 2, 4, 5, 0, 3)] == [77, 18, -5, 0, 23, 63]


def test_two_copies_share_nothing(data):
    first, second = elf.load(data), elf.load(data)
    function(first, "lookup")(0)
    assert word(first.symbol("counter")).value == 13
    assert word(second.symbol("counter")).value == 3


def mapping_of(address: int) -> str:
    with open("/proc/self/maps", encoding="ascii") as maps:
        for line in maps:
            low, _, high = line.split()[0].partition("-")
            if int(low, 16) <= address < int(high, 16):
                return line.split()[1]
    raise AssertionError(f"{address:#x} is not mapped")


def test_no_page_is_writable_and_executable(data):
    loaded = elf.load(data)
    assert mapping_of(loaded.symbol("lookup")) == "r-xp"
    assert mapping_of(loaded.symbol("counter")) == "rw-p"
    assert mapping_of(loaded.symbol("table")) == "r--p"


def test_an_unknown_symbol_is_named(data):
    with pytest.raises(NotFoundError, match=r"lookup.*'absent'"):
        elf.load(data).symbol("absent")


def test_memory_goes_with_the_last_reference(data):
    loaded = elf.load(data)
    gone = weakref.ref(loaded)
    del loaded
    gc.collect()
    assert gone() is None


def test_known_26_loading_and_dropping_keeps_no_memory(data):
    def resident():
        with open("/proc/self/statm", encoding="ascii") as statm:
            return int(statm.read().split()[1]) * 4096

    for _ in range(50):
        elf.load(data).close()
    before = resident()
    for _ in range(2000):
        elf.load(data).close()
    assert resident() - before < 8 << 20  # 2000 engines of LLVM would keep 110 MB


def test_close_waits_for_leases(data):
    loaded = elf.load(data)
    constant = function(loaded, "constant", ctypes.c_double, ctypes.c_double)
    entered, leave = threading.Event(), threading.Event()

    def hold():
        with loaded.lease():
            entered.set()
            leave.wait(10)
            assert constant(1.0) == 2.5

    thread = threading.Thread(target=hold)
    thread.start()
    entered.wait(10)
    loaded.close()
    loaded.close()
    assert loaded.closed
    assert constant(0.0) == 1.5  # still mapped
    leave.set()
    thread.join()
    with pytest.raises(InternalError, match="closed"):
        loaded.symbol("constant")
    with pytest.raises(InternalError, match="closed"), loaded.lease():
        pass


def test_an_object_for_another_machine_is_refused():
    other = "armv8-a" if host_architecture() == "x86_64" else "x86-64"
    with pytest.raises(InternalError, match="expected an object for"):
        elf.load(llvm.compile_ir(MODULE, named_target(other)))


def tables(data):
    """Return (symbol table offset, names offset, relocation tables) of a good object."""
    (start,) = struct.unpack_from("<Q", data, 40)
    (count,) = struct.unpack_from("<H", data, 60)
    rows = [struct.unpack_from("<IIQQQQIIQQ", data, start + 64 * i) for i in range(count)]
    symbols = next(row for row in rows if row[1] == 2)
    return symbols, rows[symbols[6]], [row for row in rows if row[1] == 4]


def test_an_undefined_symbol_is_refused_by_name(data):
    symbols, names, _ = tables(data)
    torn = bytearray(data)
    for offset in range(symbols[4], symbols[4] + symbols[5], 24):
        (name,) = struct.unpack_from("<I", data, offset)
        if data[names[4] + name :].startswith(b"lookup\0"):
            struct.pack_into("<H", torn, offset + 6, 0)
    assert elf.undefined_symbols(bytes(torn)) == ("lookup",)
    with pytest.raises(InternalError, match="lookup"):
        elf.load(bytes(torn))


def test_an_unknown_relocation_is_refused(data):
    torn = bytearray(data)
    for _, _, _, _, offset, size, *_ in tables(data)[2]:
        if size:
            struct.pack_into("<I", torn, offset + 8, 99)
    with pytest.raises(InternalError, match="type 99"):
        elf.load(bytes(torn))


def test_a_relocation_outside_its_section_is_refused(data):
    for position in (1 << 20, (1 << 64) - 2):
        torn = bytearray(data)
        for _, _, _, _, offset, size, *_ in tables(data)[2]:
            if size:
                struct.pack_into("<Q", torn, offset, position)
        with pytest.raises(InternalError, match="inside its section"):
            elf.load(bytes(torn))


@pytest.mark.parametrize("name", ["x86-64", "armv8-a"])
def test_truncation_at_any_offset_is_an_error(name):
    whole = llvm.compile_ir(MODULE, named_target(name))
    for length in range(len(whole)):
        with pytest.raises(InternalError):
            elf.parse(whole[:length])


@pytest.mark.parametrize("name", ["x86-64", "armv8-a"])
def test_known_6_flipped_bytes_raise_or_load(name):
    """Damage is an InternalError or goes unseen (the cache's digest sees it); nothing else."""
    whole = llvm.compile_ir(MODULE, named_target(name))
    chance = random.Random(5)
    survived = 0
    for _ in range(1500):
        torn = bytearray(whole)
        for _ in range(chance.randint(1, 4)):
            torn[chance.randrange(len(torn))] = chance.choice((0, 1, 0x7F, 0x80, 0xFF))
        try:
            file = elf.parse(bytes(torn))
            layout = elf.plan(file)
            if layout.size < 1 << 20:
                elf.place(file, layout, 1 << 32, bytearray(layout.size))
                survived += 1
        except InternalError:
            continue
    assert survived > 100


def test_random_bytes_after_a_good_header_are_refused(data):
    chance = random.Random(7)
    for _ in range(200):
        with pytest.raises(InternalError):
            elf.parse(data[:64] + chance.randbytes(600))
    with pytest.raises(InternalError):
        elf.parse(b"")


def test_an_empty_module_loads():
    loaded = elf.load(llvm.compile_ir("", host_target()))
    assert loaded.symbols == ()
    loaded.close()


def test_aarch64_code_runs_after_relocation():
    """Every relocation that LLVM makes of the module, run by an emulator where there is one."""
    unicorn = pytest.importorskip("unicorn")
    file = elf.parse(llvm.compile_ir(MODULE, named_target("armv8-a")))
    layout = elf.plan(file)
    base, stack = 0x7F12_3456_7000, 0x10000
    image = bytearray(layout.size)
    elf.place(file, layout, base, image)
    exports = elf.exports(file, layout, base)
    machine = unicorn.Uc(unicorn.UC_ARCH_ARM64, unicorn.UC_MODE_ARM)
    machine.mem_map(base, layout.size)
    machine.mem_map(stack, 0x10000)
    machine.mem_write(base, bytes(image))
    results = []
    for value in (1, 2, 4, 5, 0, 3):
        machine.reg_write(unicorn.arm64_const.UC_ARM64_REG_X0, value)
        machine.reg_write(unicorn.arm64_const.UC_ARM64_REG_LR, stack)
        machine.reg_write(unicorn.arm64_const.UC_ARM64_REG_SP, stack + 0x8000)
        machine.emu_start(exports["switch"], stack)
        results.append(machine.reg_read(unicorn.arm64_const.UC_ARM64_REG_X0))
    assert results == [77, 18, (1 << 64) - 5, 0, 23, 63]
