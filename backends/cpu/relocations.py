"""Relocation rules as data: one row a relocation type of x86-64 and AArch64."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable, Mapping

from frame.core.dataclass import dataclass
from frame.core.errors import InternalError


@dataclass(frozen=True, slots=True)
class Patch:
    """One place to patch: `offset` in `image`, loaded at `place`; `value` is symbol plus addend."""

    image: bytearray | mmap.mmap
    offset: int
    place: int
    value: int
    symbol: str


@dataclass(frozen=True, slots=True)
class Relocation:
    """`width` is the bytes patched; `table` tells that the value is a slot of the address table."""

    name: str
    width: int
    apply: Callable[[Patch], None]
    table: bool = False


@dataclass(frozen=True, slots=True)
class Machine:
    """An ELF machine number with its relocation rules."""

    number: int
    name: str
    relocations: Mapping[int, Relocation]


def _check(patch: Patch, value: int, low: int, high: int, what: str) -> int:
    if not low <= value < high:
        raise InternalError(
            f"expected {what} of {patch.symbol!r} between {low} and {high}, received {value}"
        )
    return value


def _write(size: int, relative: bool, signed: bool) -> Callable[[Patch], None]:
    """Return the rule that stores S+A or S+A-P as an integer of `size` bytes."""
    layout = struct.Struct("<" + {4: "i", 8: "q"}[size] if signed else {4: "<I", 8: "<Q"}[size])
    low = -(1 << (8 * size - 1)) if signed else 0
    high = 1 << (8 * size - (1 if signed else 0))

    def apply(patch: Patch) -> None:
        value = patch.value - (patch.place if relative else 0)
        if size == 8:
            value = (value - low) % (1 << 64) + low
        layout.pack_into(patch.image, patch.offset, _check(patch, value, low, high, "the address"))

    return apply


def _instruction(patch: Patch, mask: int, bits: int) -> None:
    """Replace the bits under `mask` of the 32-bit instruction at the place."""
    (word,) = struct.unpack_from("<I", patch.image, patch.offset)
    struct.pack_into("<I", patch.image, patch.offset, (word & ~mask & 0xFFFFFFFF) | (bits & mask))


def _branch(bits: int, shift: int) -> Callable[[Patch], None]:
    """Return the rule of a word-aligned branch distance of `bits` bits that stand at `shift`."""
    reach = 1 << (bits + 1)

    def apply(patch: Patch) -> None:
        distance = _check(patch, patch.value - patch.place, -reach, reach, "the distance")
        _aligned(patch, distance, 4)
        _instruction(patch, ((1 << bits) - 1) << shift, (distance >> 2) << shift)

    return apply


def _address_immediate(patch: Patch, value: int) -> None:
    """Store the 21-bit immediate of ADR and ADRP: low 2 bits at 29, the others at 5."""
    _instruction(patch, 0x60FFFFE0, ((value & 3) << 29) | (((value >> 2) & 0x7FFFF) << 5))


def _page(patch: Patch) -> None:
    pages = (patch.value >> 12) - (patch.place >> 12)
    _address_immediate(patch, _check(patch, pages, -(1 << 20), 1 << 20, "the page distance"))


def _near(patch: Patch) -> None:
    distance = patch.value - patch.place
    _address_immediate(patch, _check(patch, distance, -(1 << 20), 1 << 20, "the distance"))


def _low12(scale: int) -> Callable[[Patch], None]:
    """Return the rule of the low 12 address bits, in units of `scale` bytes, at bit 10."""

    def apply(patch: Patch) -> None:
        low = patch.value & 0xFFF
        _aligned(patch, low, scale)
        _instruction(patch, 0xFFF << 10, (low // scale) << 10)

    return apply


def _aligned(patch: Patch, value: int, alignment: int) -> None:
    if value % alignment:
        raise InternalError(
            f"expected {patch.symbol!r} aligned to {alignment} bytes, received offset {value}"
        )


def _move(group: int) -> Callable[[Patch], None]:
    """Return the rule of MOVZ and MOVK: 16 bits of the address at bit 5."""

    def apply(patch: Patch) -> None:
        _instruction(patch, 0xFFFF << 5, ((patch.value >> (16 * group)) & 0xFFFF) << 5)

    return apply


_RELATIVE4 = _write(4, relative=True, signed=True)

_X86_64: dict[int, Relocation] = {
    1: Relocation("R_X86_64_64", 8, _write(8, relative=False, signed=False)),
    2: Relocation("R_X86_64_PC32", 4, _RELATIVE4),
    4: Relocation("R_X86_64_PLT32", 4, _RELATIVE4),
    9: Relocation("R_X86_64_GOTPCREL", 4, _RELATIVE4, table=True),
    10: Relocation("R_X86_64_32", 4, _write(4, relative=False, signed=False)),
    11: Relocation("R_X86_64_32S", 4, _write(4, relative=False, signed=True)),
    24: Relocation("R_X86_64_PC64", 8, _write(8, relative=True, signed=True)),
    41: Relocation("R_X86_64_GOTPCRELX", 4, _RELATIVE4, table=True),
    42: Relocation("R_X86_64_REX_GOTPCRELX", 4, _RELATIVE4, table=True),
}

_AARCH64: dict[int, Relocation] = {
    257: Relocation("R_AARCH64_ABS64", 8, _write(8, relative=False, signed=False)),
    258: Relocation("R_AARCH64_ABS32", 4, _write(4, relative=False, signed=False)),
    260: Relocation("R_AARCH64_PREL64", 8, _write(8, relative=True, signed=True)),
    261: Relocation("R_AARCH64_PREL32", 4, _RELATIVE4),
    264: Relocation("R_AARCH64_MOVW_UABS_G0_NC", 4, _move(0)),
    266: Relocation("R_AARCH64_MOVW_UABS_G1_NC", 4, _move(1)),
    268: Relocation("R_AARCH64_MOVW_UABS_G2_NC", 4, _move(2)),
    269: Relocation("R_AARCH64_MOVW_UABS_G3", 4, _move(3)),
    273: Relocation("R_AARCH64_LD_PREL_LO19", 4, _branch(19, 5)),
    274: Relocation("R_AARCH64_ADR_PREL_LO21", 4, _near),
    275: Relocation("R_AARCH64_ADR_PREL_PG_HI21", 4, _page),
    277: Relocation("R_AARCH64_ADD_ABS_LO12_NC", 4, _low12(1)),
    278: Relocation("R_AARCH64_LDST8_ABS_LO12_NC", 4, _low12(1)),
    279: Relocation("R_AARCH64_TSTBR14", 4, _branch(14, 5)),
    280: Relocation("R_AARCH64_CONDBR19", 4, _branch(19, 5)),
    282: Relocation("R_AARCH64_JUMP26", 4, _branch(26, 0)),
    283: Relocation("R_AARCH64_CALL26", 4, _branch(26, 0)),
    284: Relocation("R_AARCH64_LDST16_ABS_LO12_NC", 4, _low12(2)),
    285: Relocation("R_AARCH64_LDST32_ABS_LO12_NC", 4, _low12(4)),
    286: Relocation("R_AARCH64_LDST64_ABS_LO12_NC", 4, _low12(8)),
    299: Relocation("R_AARCH64_LDST128_ABS_LO12_NC", 4, _low12(16)),
    311: Relocation("R_AARCH64_ADR_GOT_PAGE", 4, _page, table=True),
    312: Relocation("R_AARCH64_LD64_GOT_LO12_NC", 4, _low12(8), table=True),
    314: Relocation("R_AARCH64_PLT32", 4, _RELATIVE4),
}

MACHINES: dict[int, Machine] = {
    62: Machine(62, "x86-64", _X86_64),
    183: Machine(183, "AArch64", _AARCH64),
}
