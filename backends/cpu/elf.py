"""A loader of our own for ELF64 relocatable objects: bytes in, addresses of functions out.

The objects of an artefact are linked and placed into one anonymous private mapping:

    | code (read, execute) | constants and address table (read) | data (read, write) |

It is written while the pages are writable and is executable only afterwards, never both. The
bytes are untrusted: every offset and size is checked, and whatever is torn, unknown or undefined
raises InternalError. LLVM is not needed, so a warm start doesn't import it. Unlike an engine of
LLVM, a LoadedObject gives its memory back.

Sources: System V gABI 4.1 chapter 4; for relocations the x86-64 psABI 1.0 and the AArch64 ELF ABI.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import platform
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from frame.backends.cpu.relocations import MACHINES, Machine, Patch
from frame.core import forks
from frame.core.dataclass import dataclass
from frame.core.errors import DeviceError, InternalError, NotFoundError, OutOfMemoryError

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELA = struct.Struct("<QQq")

_MAGIC = b"\x7fELF\x02\x01\x01"  # 64 bits, little endian, version 1
_RELOCATABLE = 1
_PROGBITS, _SYMTAB, _STRTAB, _RELA_TYPE, _NOBITS = 1, 2, 3, 4, 8
_REFUSED_TYPES = (9, 14, 15, 16, 18)  # REL, arrays of initialisers, extended section indices
_WRITE, _ALLOC, _EXECUTE, _TLS = 1, 2, 4, 0x400
_UNDEFINED, _ABSOLUTE, _COMMON, _RESERVED = 0, 0xFFF1, 0xFFF2, 0xFF00
_SECTION_SYMBOL, _FILE_SYMBOL, _TLS_SYMBOL = 3, 4, 6

_LARGEST = 1 << 30  # bytes of one loaded object; relative addresses reach 2 GiB
_LARGEST_ALIGNMENT = 4096
_MOST_SECTIONS = 1 << 16
_MACHINE_NAMES = {"x86_64": 62, "AMD64": 62, "aarch64": 183, "arm64": 183}


@dataclass(frozen=True, slots=True)
class Section:
    """One section header; `data` is empty for a section without bytes in the file.

    `first_symbol` is the number of its object's first symbol among those of all linked objects.
    """

    name: str
    type: int
    flags: int
    size: int
    alignment: int
    link: int
    info: int
    data: memoryview
    first_symbol: int = 0

    @property
    def loaded(self) -> bool:
        """Whether the section takes part in the loaded image (unwind tables do not)."""
        return (
            bool(self.flags & _ALLOC)
            and self.type in (_PROGBITS, _NOBITS)
            and not self.name.startswith(".eh_frame")
        )


@dataclass(frozen=True, slots=True)
class Symbol:
    """One symbol: `section` is a section index or a reserved one, `value` its offset there."""

    name: str
    type: int
    section: int
    value: int
    exported: bool


@dataclass(frozen=True, slots=True)
class ObjectFile:
    """The parsed and bounds-checked tables of one object, or of several that are linked."""

    machine: Machine
    sections: tuple[Section, ...]
    symbols: tuple[Symbol, ...]

    def relocation_sections(self) -> dict[int, list[Section]]:
        """Return the relocation tables of each section that has some."""
        tables: dict[int, list[Section]] = {}
        for section in self.sections:
            if section.type == _RELA_TYPE:
                tables.setdefault(section.info, []).append(section)
        return tables


def parse(data: bytes) -> ObjectFile:
    """Return the tables of an ELF64 relocatable object; InternalError if it is anything else."""
    view = memoryview(data)
    header = _unpack(_HEADER, view, 0, "the header")
    if header[0][:7] != _MAGIC or header[1] != _RELOCATABLE or header[2] not in MACHINES:
        raise _torn("an ELF64 relocatable object for x86-64 or AArch64", "another header")
    sections = _parse_sections(view, header)
    for section in sections:
        if section.type in _REFUSED_TYPES or section.flags & _TLS:
            raise _torn("sections of the kinds that LLVM makes of a kernel", repr(section.name))
    return ObjectFile(MACHINES[header[2]], sections, _parse_symbols(sections))


def undefined_symbols(data: bytes) -> tuple[str, ...]:
    """Return the sorted names that an object needs from outside itself; errors as in `parse`."""
    return tuple(sorted({symbol.name for symbol in _undefined(parse(data))}))


def link(files: Sequence[ObjectFile]) -> ObjectFile:
    """Return one object that holds the sections of all; what one lacks another may define.

    Raises InternalError for objects of several machines, and for a name that two of them export.
    """
    machines = {file.machine.name for file in files}
    if len(machines) != 1:
        raise _torn("objects for one machine", ", ".join(sorted(machines)) or "no object")
    if len(files) == 1:
        return files[0]
    sections: list[Section] = []
    symbols: list[Symbol] = []
    for file in files:
        moved = _moved_symbols(file, len(sections))
        sections += _moved_sections(file, len(sections), len(symbols))
        symbols += moved
    return ObjectFile(files[0].machine, tuple(sections), _resolved(symbols))


def _moved_sections(file: ObjectFile, first: int, first_symbol: int) -> Iterator[Section]:
    """Yield the sections of an object whose number 0 becomes `first`."""
    for section in file.sections:
        info = section.info + first if section.type == _RELA_TYPE else section.info
        yield replace(section, info=info, first_symbol=first_symbol)


def _moved_symbols(file: ObjectFile, first: int) -> list[Symbol]:
    return [
        replace(symbol, section=symbol.section + first)
        if _UNDEFINED < symbol.section < _RESERVED
        else symbol
        for symbol in file.symbols
    ]


def _resolved(symbols: Sequence[Symbol]) -> tuple[Symbol, ...]:
    """Give each undefined symbol the place that another object exports under its name."""
    places: dict[str, Symbol] = {}
    for symbol in symbols:
        if symbol.exported and symbol.section not in (_UNDEFINED, _COMMON):
            if symbol.name in places:
                raise _torn("one definition of each name", f"two of {symbol.name!r}")
            places[symbol.name] = symbol
    return tuple(
        replace(places[symbol.name], exported=False)
        if symbol.section == _UNDEFINED and symbol.name in places
        else symbol
        for symbol in symbols
    )


class LoadedObject:
    """Machine code in executable memory, at addresses that stay valid until it is freed.

    The memory is freed when the last reference goes, or at `close` once no lease is held. Whoever
    calls into the code holds a reference and never closes (the executable does), or a lease.
    """

    __slots__ = ("__weakref__", "_closing", "_exports", "_image", "_leases", "_lock", "size")

    def __init__(self, image: mmap.mmap, exports: Mapping[str, int], size: int) -> None:
        self._image: mmap.mmap | None = image
        self._exports = dict(exports)
        self._lock = forks.lock()
        self._leases = 0
        self._closing = False
        self.size = size

    @property
    def symbols(self) -> tuple[str, ...]:
        """The exported names, sorted."""
        return tuple(sorted(self._exports))

    @property
    def closed(self) -> bool:
        """Whether `close` was called; the memory goes when the last lease ends."""
        return self._closing

    def symbol(self, name: str) -> int:
        """Return the address of an exported function or variable, or raise NotFoundError."""
        if self._closing:
            raise InternalError(f"expected an open object, received a closed one, for {name!r}")
        try:
            return self._exports[name]
        except KeyError:
            known = ", ".join(self.symbols) or "nothing"
            raise NotFoundError(
                f"expected a symbol of this object ({known}), got {name!r}"
            ) from None

    @contextmanager
    def lease(self) -> Iterator[LoadedObject]:
        """Keep the code mapped while the block runs, even if another thread calls `close`."""
        with self._lock:
            if self._closing:
                raise InternalError("expected an open object, received a closed one")
            self._leases += 1
        try:
            yield self
        finally:
            with self._lock:
                self._leases -= 1
                self._free_if_idle()

    def close(self) -> None:
        """Free the memory, now or when the last lease ends. Closing twice is harmless."""
        with self._lock:
            self._closing = True
            self._free_if_idle()

    def _free_if_idle(self) -> None:
        if self._closing and self._leases == 0 and self._image is not None:
            self._image.close()
            self._image = None


def load(*objects: bytes) -> LoadedObject:
    """Link objects of this machine and place them into executable memory.

    Raises InternalError for a torn or foreign object, a symbol that is undefined or defined twice,
    or an unknown relocation, OutOfMemoryError when there is no room, DeviceError when the system
    forbids executable memory.
    """
    if platform.machine() not in _MACHINE_NAMES:
        raise DeviceError(f"expected an x86-64 or AArch64 machine, found {platform.machine()!r}")
    file = link(tuple(map(parse, objects)))
    if file.machine.number != _MACHINE_NAMES[platform.machine()]:
        raise InternalError(
            f"expected an object for {platform.machine()}, received one for {file.machine.name}"
        )
    layout = plan(file)
    image = _map(layout.size)
    base = _address(image)
    place(file, layout, base, image)
    for start, end, protection in layout.protections:
        _protect(base + start, end - start, protection)
    return LoadedObject(image, exports(file, layout, base), layout.size)


@dataclass(frozen=True, slots=True)
class Layout:
    """Offsets in the image of each loaded section and of the address table with its slots."""

    offsets: Mapping[int, int]
    table: int
    slots: Mapping[int, int]
    size: int
    protections: tuple[tuple[int, int, int], ...]


def plan(file: ObjectFile) -> Layout:
    """Lay out code, constants and data on pages of their own; refuse undefined symbols."""
    missing = sorted({symbol.name for symbol in _undefined(file)})
    if missing:
        raise InternalError(
            f"expected an object without undefined symbols, it needs {', '.join(missing)}"
        )
    offsets: dict[int, int] = {}
    slots = _table_slots(file)
    protections = []
    position = 0
    table = 0
    for protection, members in _by_protection(file.sections):
        start = position
        for index in members:
            position = _round_up(position, file.sections[index].alignment)
            offsets[index] = position
            position += file.sections[index].size
        if protection == mmap.PROT_READ:
            table = _round_up(position, 8)
            position = table + 8 * len(slots)
        if position > _LARGEST:
            raise _torn(f"an object of at most {_LARGEST} bytes", f"one of {position}")
        position = _round_up(position, mmap.PAGESIZE)
        if position > start:
            protections.append((start, position, protection))
    return Layout(offsets, table, slots, position, tuple(protections))


def place(file: ObjectFile, layout: Layout, base: int, image: bytearray | mmap.mmap) -> None:
    """Write the image relocated for the page-aligned address `base` into a zeroed buffer."""
    for index, offset in layout.offsets.items():
        data = file.sections[index].data
        image[offset : offset + len(data)] = data
    addresses = _symbol_addresses(file, layout, base)
    tables = file.relocation_sections()
    for symbol, slot in layout.slots.items():
        address = addresses[symbol]
        if address is None:
            raise _torn("a symbol with an address", repr(file.symbols[symbol].name))
        struct.pack_into("<Q", image, layout.table + 8 * slot, address)
    for index, offset in layout.offsets.items():
        for relocation in _relocations(file, index, tables.get(index, ())):
            _relocate(file, layout, addresses, image, base, offset, relocation)


def exports(file: ObjectFile, layout: Layout, base: int) -> dict[str, int]:
    """Return the address of every global symbol of an object placed at `base`."""
    addresses = _symbol_addresses(file, layout, base)
    return {
        symbol.name: address
        for symbol, address in zip(file.symbols, addresses, strict=True)
        if symbol.exported and symbol.name and address is not None
    }


def _relocate(
    file: ObjectFile,
    layout: Layout,
    addresses: list[int | None],
    image: bytearray | mmap.mmap,
    base: int,
    start: int,
    relocation: tuple[int, int, int, int],
) -> None:
    """Patch one place of the section that begins at `start`."""
    position, kind, symbol, addend = relocation
    rule = file.machine.relocations.get(kind)
    if rule is None:
        raise _torn(f"a known {file.machine.name} relocation", f"type {kind}")
    target = addresses[symbol]
    if target is None:
        raise _torn("a relocation against a loaded section", repr(file.symbols[symbol].name))
    if rule.table:
        target = base + layout.table + 8 * layout.slots[symbol]
    place = start + position
    rule.apply(Patch(image, place, base + place, target + addend, file.symbols[symbol].name))


def _relocations(
    file: ObjectFile, index: int, tables: Sequence[Section]
) -> Iterator[tuple[int, int, int, int]]:
    """Yield checked (offset, type, symbol index, addend) of the relocations of one section."""
    for section in tables:
        if len(section.data) % _RELA.size:
            raise _torn("whole relocation entries", f"{len(section.data)} bytes of them")
        for offset, info, addend in _RELA.iter_unpack(section.data):
            kind, symbol = info & 0xFFFFFFFF, (info >> 32) + section.first_symbol
            rule = file.machine.relocations.get(kind)
            width = rule.width if rule else 0
            if offset + width > file.sections[index].size or symbol >= len(file.symbols):
                raise _torn("a relocation inside its section", f"offset {offset}, symbol {symbol}")
            if kind:  # type 0 does nothing
                yield offset, kind, symbol, addend


def _table_slots(file: ObjectFile) -> dict[int, int]:
    """Number the symbols whose address is read from the address table (the GOT)."""
    slots: dict[int, int] = {}
    tables = file.relocation_sections()
    for index, section in enumerate(file.sections):
        if section.loaded:
            for _, kind, symbol, _ in _relocations(file, index, tables.get(index, ())):
                rule = file.machine.relocations.get(kind)
                if rule is not None and rule.table:
                    slots.setdefault(symbol, len(slots))
    return slots


def _by_protection(sections: tuple[Section, ...]) -> Iterator[tuple[int, list[int]]]:
    """Yield (page protection, section indices): code, constants, data, in this order."""
    groups: dict[int, list[int]] = {
        mmap.PROT_READ | mmap.PROT_EXEC: [],
        mmap.PROT_READ: [],
        mmap.PROT_READ | mmap.PROT_WRITE: [],
    }
    for index, section in enumerate(sections):
        if section.loaded:
            groups[_protection(section)].append(index)
    yield from groups.items()


def _protection(section: Section) -> int:
    if section.flags & _EXECUTE and section.flags & _WRITE:
        raise _torn("a section that is writable or executable", f"{section.name!r} that is both")
    if section.flags & _EXECUTE:
        return mmap.PROT_READ | mmap.PROT_EXEC
    return mmap.PROT_READ | (mmap.PROT_WRITE if section.flags & _WRITE else 0)


def _symbol_addresses(file: ObjectFile, layout: Layout, base: int) -> list[int | None]:
    """Return the address of each symbol, None for one outside the image."""
    return [_symbol_address(file, layout, base, symbol) for symbol in file.symbols]


def _symbol_address(file: ObjectFile, layout: Layout, base: int, symbol: Symbol) -> int | None:
    if symbol.type == _FILE_SYMBOL or symbol.section == _UNDEFINED:
        return None
    if symbol.section >= _RESERVED or symbol.section not in layout.offsets:
        return None
    if symbol.value > file.sections[symbol.section].size:
        raise _torn("a symbol inside its section", f"{symbol.name!r} at {symbol.value}")
    return base + layout.offsets[symbol.section] + symbol.value


def _undefined(file: ObjectFile) -> Iterator[Symbol]:
    for symbol in file.symbols:
        # The first symbol of each object is nobody's.
        nobody = not symbol.name and symbol.section == _UNDEFINED
        if symbol.section in (_UNDEFINED, _COMMON) and symbol.type != _FILE_SYMBOL and not nobody:
            yield symbol


def _parse_sections(view: memoryview, header: tuple[int, ...]) -> tuple[Section, ...]:
    start, size, count, names_index = header[6], header[11], header[12], header[13]
    if size != _SECTION.size or count > _MOST_SECTIONS:
        raise _torn(f"section headers of {_SECTION.size} bytes", f"{count} of {size} bytes")
    rows = [
        _unpack(_SECTION, view, start + number * size, f"section header {number}")
        for number in range(count)
    ]
    if names_index >= count:
        raise _torn("a table of section names", f"index {names_index} of {count}")
    names = _slice(view, rows[names_index][4], rows[names_index][5], "the section names")
    return tuple(_parse_section(view, names, row) for row in rows)


def _parse_section(view: memoryview, names: memoryview, row: tuple[int, ...]) -> Section:
    name, kind, flags, _, offset, size, link, info, alignment, _ = row
    text = _string(names, name)
    alignment = alignment or 1
    if alignment > _LARGEST_ALIGNMENT or alignment & (alignment - 1) or size > _LARGEST:
        raise _torn("a sane section size and alignment", f"{size} and {alignment} of {text!r}")
    has_bytes = kind not in (0, _NOBITS)
    data = _slice(view, offset, size, f"section {text!r}") if has_bytes else view[:0]
    return Section(text, kind, flags, size, alignment, link, info, data)


def _parse_symbols(sections: tuple[Section, ...]) -> tuple[Symbol, ...]:
    tables = [section for section in sections if section.type == _SYMTAB]
    if len(tables) != 1 or len(tables[0].data) % _SYMBOL.size:
        raise _torn("one table of whole symbols", f"{len(tables)} tables")
    link = tables[0].link
    if link >= len(sections) or sections[link].type != _STRTAB:
        raise _torn("a table of symbol names", f"section {link}")
    names = sections[link].data
    return tuple(_parse_symbol(names, row) for row in _SYMBOL.iter_unpack(tables[0].data))


def _parse_symbol(names: memoryview, row: tuple[int, ...]) -> Symbol:
    name, info, _, section, value, _ = row
    kind = info & 15
    if kind == _TLS_SYMBOL or info >> 4 not in (0, 1, 2):
        raise _torn("a local, global or weak symbol", f"info {info}")
    return Symbol(_string(names, name), kind, section, value, info >> 4 != 0)


def _unpack(layout: struct.Struct, view: memoryview, offset: int, what: str) -> tuple[Any, ...]:
    if offset < 0 or offset + layout.size > len(view):
        raise _torn(f"{layout.size} bytes of {what}", f"{len(view)} bytes in all")
    return layout.unpack_from(view, offset)


def _slice(view: memoryview, offset: int, size: int, what: str) -> memoryview:
    if offset + size > len(view):
        raise _torn(f"{what} at {offset} to {offset + size}", f"{len(view)} bytes in all")
    return view[offset : offset + size]


def _string(names: memoryview, offset: int) -> str:
    """Return the zero-terminated name at `offset`."""
    end = bytes(names[offset : offset + 4096]).find(0)
    if offset >= len(names) or end < 0:
        raise _torn("a terminated name", f"offset {offset} of {len(names)}")
    return bytes(names[offset : offset + end]).decode("utf-8", "backslashreplace")


def _torn(expected: str, received: str) -> InternalError:
    return InternalError(
        f"damaged or foreign object: expected {expected}, received {received}; "
        "delete the cache entry"
    )


def _round_up(position: int, alignment: int) -> int:
    return (position + alignment - 1) & -alignment


def _map(size: int) -> mmap.mmap:
    """Return zeroed private memory; a shared mapping would let a forked child write our data."""
    try:
        return mmap.mmap(
            -1,
            max(size, mmap.PAGESIZE),
            flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS,
            prot=mmap.PROT_READ | mmap.PROT_WRITE,
        )
    except OSError as error:
        raise OutOfMemoryError(f"expected room for {size} bytes of code: {error}") from error


def _address(image: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(image))


@functools.cache
def _mprotect() -> ctypes._NamedFuncPointer:
    function = ctypes.CDLL(None, use_errno=True).mprotect
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    function.restype = ctypes.c_int
    return function


def _protect(address: int, size: int, protection: int) -> None:
    """Set the protection of whole pages; Linux makes AArch64 caches coherent as they turn RX."""
    if _mprotect()(address, size, protection) != 0:
        raise DeviceError(
            f"expected leave to make memory executable, the system refused (errno "
            f"{ctypes.get_errno()}); allow this process executable memory (SELinux: execmem)"
        )
