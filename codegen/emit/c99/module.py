"""A loop module as one C99 source: constants, kernels, and an entry that runs launches serially.

The source needs a C99 compiler and libm, and no flag that relaxes floating point. The entry:

    int ENTRY(void *const *buffers, const int64_t *symbols, unsigned char *arena,
              const int64_t *offsets, int64_t *status);

`buffers` are the inputs then the outputs, `symbols` the sizes known only at run time, `arena`
scratch memory aligned to 64 bytes, `offsets` the table of arena offsets (may be null where no
buffer uses it), `status` three words (site, position, value) that the caller sets to zero. It
returns 0, or 1 when a check failed.
"""

from __future__ import annotations

import re

from frame.codegen.emit.c99.helpers import c_type, with_needed
from frame.codegen.emit.c99.statements import emit_block, place_buffer
from frame.codegen.emit.c99.writer import CWriter
from frame.codegen.emit.sharing import failing_kernels
from frame.codegen.loops import ir
from frame.codegen.loops.ir import Kernel, Module, Place
from frame.core.dataclass import dataclass
from frame.core.errors import InvalidArgumentError

NAME_LENGTH = 48

HEADER = """#include <math.h>
#include <stdint.h>
#include <string.h>
"""

ENTRY_HEAD = """int {name}(void *const *buffers, const int64_t *symbols, unsigned char *arena,
    const int64_t *offsets, int64_t *status) {{
    (void)buffers; (void)symbols; (void)arena; (void)offsets;"""


@dataclass(frozen=True, slots=True)
class KernelInfo:
    """What callers must know of a kernel."""

    symbol: str
    fails: bool
    types: tuple[str, ...] = ()
    """The C type of the elements of each buffer."""


def emit_module(module: Module, entry: str = "frame_entry") -> str:
    """Return the C99 source of a loop module; `entry` names its only external function.

    Raises:
        InvalidArgumentError: `entry` is not a C identifier.
        InternalError: loop IR that the verifier would refuse.
    """
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,62}", entry):
        raise InvalidArgumentError(f"expected a C identifier as entry, received {entry!r}")
    helpers: set[str] = set()
    kernels = _kernel_infos(module)
    functions = [_kernel(kernel, kernels, helpers) for kernel in module.kernels]
    functions.append(_entry(module, entry, CWriter(helpers, kernels)))
    constants = [_constant(place, data) for place, data in enumerate(module.constants)]
    return "\n".join((HEADER, *with_needed(helpers), *constants, *functions)) + "\n"


def _kernel_infos(module: Module) -> dict[str, KernelInfo]:
    fails = failing_kernels(module.kernels)
    return {
        kernel.name: KernelInfo(
            f"kernel{place}_{_safe(kernel.name)}",
            kernel.name in fails,
            tuple(c_type(buffer.dtype) for buffer in kernel.buffers),
        )
        for place, kernel in enumerate(module.kernels)
    }


def _safe(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_]", "_", text)[:NAME_LENGTH]


def _constant(place: int, data: ir.ConstantData) -> str:
    """Bytes in a union with the widest types, which aligns them for every element type."""
    size = max(len(data.data), 1)
    text = ",".join(str(byte) for byte in data.data) or "0"
    return (
        f"static const union {{ unsigned char bytes[{size}]; int64_t word; double number; }} "
        f"constant{place} = {{{{{text}}}}};\n"
    )


def _kernel(kernel: Kernel, kernels: dict[str, KernelInfo], helpers: set[str]) -> str:
    writer, info = CWriter(helpers, kernels), kernels[kernel.name]
    parameters = []
    for place, buffer in enumerate(kernel.buffers):
        parameters.append(f"{c_type(buffer.dtype)} *b{place}")
    for place, scalar in enumerate(kernel.scalars):
        parameters.append(f"int64_t s{place}")
        writer.variables[scalar] = f"s{place}"
    parameters += ["int64_t chunk", *(["int64_t *status"] if info.fails else [])]
    writer.line("(void)chunk;")
    for place, buffer in enumerate(kernel.buffers):
        place_buffer(writer, buffer, f"b{place}")
    emit_block(writer, kernel.body)
    note = "".join(f"/* {line.replace('*/', '* /')} */\n" for line in kernel.note.splitlines())
    head = f"{note}static void {info.symbol}({', '.join(parameters)}) {{"
    return "\n".join((head, *writer.lines, "}\n"))


def _entry(module: Module, name: str, writer: CWriter) -> str:
    for place, scalar in enumerate(module.entry.scalars):
        writer.variables[scalar] = writer.scalar(scalar.type.dtype, f"symbols[{place}]")
    for placement in module.entry.placements:
        _place(writer, placement)
    emit_block(writer, module.entry.body)
    writer.line("return status[0] != 0;")
    return "\n".join((ENTRY_HEAD.format(name=name), *writer.lines, "}"))


PLACES = {
    Place.ARGUMENT: "({type} *)buffers[{slot}]",
    Place.ARENA: "({type} *)(void *)(arena + {slot})",
    Place.TABLE: "({type} *)(void *)(arena + offsets[{slot}])",
    Place.CONSTANT: "({type} *)(uintptr_t)constant{slot}.bytes",
}


def _place(writer: CWriter, placement: ir.Placement) -> None:
    type_, name = c_type(placement.buffer.dtype), writer.name("p")
    text = PLACES[placement.place].format(type=type_, slot=placement.slot)
    writer.line(f"{type_} *const {name} = {text};")
    place_buffer(writer, placement.buffer, name)
