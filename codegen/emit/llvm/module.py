"""A loop module as LLVM modules: kernels, thunks, constants and the entry.

A kernel becomes a function of its buffers, scalars, the chunk and (where it reports bad
values) the fail function and the status words. A thunk `void @NAME(ptr args, i64 chunk)`, which the
launch function calls, unpacks one word a parameter. The entry is `i64 @NAME(ptr context)`: 0 = ok,
1 = a check failed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from frame.codegen.emit.llvm.entry import emit_entry
from frame.codegen.emit.llvm.parts import (
    ENTRY,
    PART_LENGTH,
    Unit,
    blocks,
    kept_together,
    packed,
)
from frame.codegen.emit.llvm.statements import emit_block, place_buffer
from frame.codegen.emit.llvm.writer import FunctionWriter, define, unpack
from frame.codegen.emit.sharing import failing_kernels, launches_of
from frame.codegen.loops import ir
from frame.codegen.loops.ir import Kernel, Module
from frame.codegen.loops.traverse import called_kernels, walk
from frame.core.dataclass import dataclass
from frame.core.targets import TargetDescription

NAME_LENGTH = 64


@dataclass(frozen=True, slots=True)
class KernelInfo:
    """What callers must know of a kernel.

    It has a thunk if it is launched, or if nothing calls it either. `fails` tells whether it
    reports bad values, `shared` whether several places call it: it is not inlined then, so that
    LLVM optimises it once.
    """

    kernel: Kernel
    body: str
    thunk: str | None
    fails: bool
    shared: bool


def safe_name(text: str) -> str:
    """Return `text` as a bounded symbol of letters, digits, `_` and `.`."""
    cleaned = re.sub(r"[^A-Za-z0-9_.]", "_", text)[:NAME_LENGTH]
    return cleaned if re.match(r"[A-Za-z_]", cleaned) else f"k{cleaned}"[:NAME_LENGTH]


def entry_symbol(module: Module) -> str:
    """Return the symbol of the entry function in the emitted module."""
    return safe_name(module.entry.name)


def kernel_symbols(module: Module) -> Mapping[str, str]:
    """Return the symbol of each kernel's thunk by kernel name; all are distinct."""
    taken = {entry_symbol(module)}
    symbols: dict[str, str] = {}
    for position, kernel in enumerate(module.kernels):
        symbol = safe_name(kernel.name)
        if symbol in taken or f"{symbol}.body" in taken:
            symbol = f"{symbol[: NAME_LENGTH - 8]}.{position}"
        taken |= {symbol, f"{symbol}.body"}
        symbols[kernel.name] = symbol
    return symbols


def launch_order(module: Module) -> tuple[str, ...]:
    """Return the kernel of each Launch in text order: launch i owns profile words 2i (nanoseconds,
    summed over its runs) and 2i + 1 (number of runs)."""
    return tuple(launch.kernel for launch in launches_of(module.entry))


@dataclass(frozen=True, slots=True)
class ModulePart:
    """The text of one LLVM module, and the symbols that it needs of the other parts."""

    text: str
    others: frozenset[str]


def emit_module(module: Module, target: TargetDescription, profile: bool = False) -> str:
    """Return the LLVM IR text of a loop module for a target, as one LLVM module.

    The text defines `entry_symbol(module)` and the thunks of `kernel_symbols(module)` and needs no
    other symbol. It holds no data layout: the compiler's target machine sets it. With `profile`
    each Launch reads the clock before and after and adds to its profile words, which must exist.

    Raises:
        InternalError: loop IR that the verifier would refuse.
    """
    (part,) = emit_parts(module, target, profile, longest=None)
    return part.text


def emit_parts(
    module: Module,
    target: TargetDescription,
    profile: bool = False,
    longest: int | None = PART_LENGTH,
) -> tuple[ModulePart, ...]:
    """Return a loop module as LLVM modules of about `longest` characters, the entry in the first.

    Meaning and errors as in `emit_module`.
    """
    emission = _Emission(module, target, profile)
    groups = packed([emission.unit(names) for names in emission.kept_together()], longest)
    return tuple(
        emission.part(group, [unit for other in groups if other is not group for unit in other])
        for group in groups
    )


def emit_kernel(module: Module, target: TargetDescription, name: str) -> str:
    """Return the LLVM IR text of one kernel and those that it calls, as `emit_module` has them."""
    emission = _Emission(module, target, profile=False)
    wanted = [kernel.name for kernel in called_kernels(module, name)]
    return emission.part([emission.unit(wanted)], []).text


class _Emission:
    """The functions of one loop module as LLVM IR text."""

    def __init__(self, module: Module, target: TargetDescription, profile: bool) -> None:
        self.module, self.target, self.profile = module, target, profile
        self.blocks, self.kernels = blocks(module), _kernel_infos(module)
        self.bodies = {info.body: _signature(info) for info in self.kernels.values()}

    def kept_together(self) -> list[list[str]]:
        """Return the names of the kernels that share a module in groups, the entry's first."""
        shared = [name for name, info in self.kernels.items() if info.shared]
        return kept_together(self.blocks, shared)

    def unit(self, names: Sequence[str]) -> Unit:
        """Return the texts of some kernels, or the entry, that stay together."""
        functions: dict[str, str] = {}
        declarations: dict[str, str] = {}
        for name in names:
            functions |= self._functions(name, declarations)
        statements = [s for name in names for s in walk(self.blocks[name])]
        called = {self.kernels[s.kernel].body for s in statements if isinstance(s, ir.Call)}
        launched = {self.kernels[s.kernel].thunk for s in statements if isinstance(s, ir.Launch)}
        used = called | {symbol for symbol in launched if symbol is not None}
        internal = functions.keys() & self.bodies.keys()
        return Unit(functions, frozenset(internal), frozenset(used), declarations)

    def part(self, units: Sequence[Unit], others: Sequence[Unit]) -> ModulePart:
        """Return units as a module: functions that no other unit uses are internal."""
        asked = frozenset[str]().union(*(unit.uses for unit in others))
        functions = {symbol: text for unit in units for symbol, text in _linked(unit, asked)}
        missing = frozenset[str]().union(*(unit.uses for unit in units)) - functions.keys()
        declarations = {symbol: self._declaration(symbol) for symbol in missing}
        for unit in units:
            declarations |= unit.declarations
        holds_entry = entry_symbol(self.module) in functions
        constants = self.module.constants if holds_entry else ()
        text = (
            (f"; module {safe_name(self.module.name)}", f'target triple = "{self.target.triple}"'),
            tuple(_constant(index, data) for index, data in enumerate(constants)),
            functions.values(),
            sorted(declarations.values()),
            (
                _attributes(self.target),
                '!0 = distinct !{!0, !1}\n!1 = !{!"llvm.loop.unroll.full"}\n!2 = !{i32 1}',
            ),
        )
        return ModulePart("\n".join("\n".join(lines) + "\n" for lines in text), missing)

    def _functions(self, name: str, declarations: dict[str, str]) -> dict[str, str]:
        if name != ENTRY:
            writer = FunctionWriter(self.target, declarations, self.kernels)
            return _kernel(self.kernels[name], writer)
        symbol = entry_symbol(self.module)
        texts = emit_entry(
            self.module, symbol, self.target, declarations, self.kernels, self.profile
        )
        return {symbol: "\n".join(texts)}

    def _declaration(self, symbol: str) -> str:
        return f"declare dso_local {self.bodies.get(symbol, f'void @{symbol}(ptr, i64)')}"


def _linked(unit: Unit, asked: frozenset[str]) -> Iterator[tuple[str, str]]:
    """Yield a unit's functions; internal ones that others ask for are exported."""
    for symbol, text in unit.functions.items():
        if symbol in unit.internal:
            linkage = "dso_local" if symbol in asked else "internal"
            text = re.sub("^define", f"define {linkage}", text, count=1, flags=re.MULTILINE)
        yield symbol, text


def _kernel_infos(module: Module) -> dict[str, KernelInfo]:
    symbols, fails = kernel_symbols(module), failing_kernels(module.kernels)
    blocks = [kernel.body for kernel in module.kernels] + [module.entry.body]
    statements = [statement for block in blocks for statement in walk(block)]
    launched = {statement.kernel for statement in statements if isinstance(statement, ir.Launch)}
    calls = Counter(statement.kernel for statement in statements if isinstance(statement, ir.Call))
    return {
        kernel.name: KernelInfo(
            kernel,
            f"{symbols[kernel.name]}.body",
            symbols[kernel.name] if kernel.name in launched or not calls[kernel.name] else None,
            kernel.name in fails,
            calls[kernel.name] > 1,
        )
        for kernel in module.kernels
    }


def _attributes(target: TargetDescription) -> str:
    features = ",".join(
        feature if feature[0] in "+-" else f"+{feature}" for feature in target.features
    )
    pairs = {
        "target-cpu": target.cpu,
        "target-features": features,
        "prefer-vector-width": str(target.vector_bits),
        "no-trapping-math": "true",
    }
    texts = [f'"{name}"="{value}"' for name, value in pairs.items() if value]
    if "sve" in target.features:  # how many times 128 bits a vector register holds
        texts.append(f"vscale_range({target.vector_bits // 128},{target.vector_bits // 128})")
    # Without builtins LLVM never turns a loop into memcpy or memset.
    return f'attributes #0 = {{ nounwind "no-builtins" {" ".join(texts)} }}'


def _constant(index: int, data: ir.ConstantData) -> str:
    text = "".join(f"\\{byte:02X}" for byte in data.data)
    return f'@constant.{index} = internal constant [{len(data.data)} x i8] c"{text}", align 64'


def _kernel(info: KernelInfo, writer: FunctionWriter) -> dict[str, str]:
    """Return the texts of a kernel's body, without its linkage, and thunk, by symbol."""
    kernel = info.kernel
    for position, scalar in enumerate(kernel.scalars):
        writer.variables[scalar] = f"%s{position}"
    if info.fails:
        writer.fail, writer.status = "%fail", "%status"
    for position, buffer in enumerate(kernel.buffers):
        place_buffer(writer, buffer, f"%b{position}")
    emit_block(writer, kernel.body)
    _end_streams(kernel, writer)
    writer.line("ret void")
    functions = {info.body: define(_signature(info), writer, kernel.note)}
    return functions if info.thunk is None else {**functions, info.thunk: _thunk(info)}


def _signature(info: KernelInfo) -> str:
    kernel = info.kernel
    parameters = [f"ptr %b{position}" for position in range(len(kernel.buffers))]
    parameters += [f"i64 %s{position}" for position in range(len(kernel.scalars))]
    parameters.append("i64 %chunk")
    if info.fails:
        parameters += ["ptr %fail", "ptr %status"]
    inline = " noinline" if info.shared else ""
    return f"void @{info.body}({', '.join(parameters)}){inline}"


def _end_streams(kernel: Kernel, writer: FunctionWriter) -> None:
    """Have other threads see what went past the caches: x86 orders that by a fence of its own."""
    streams = any(isinstance(s, ir.Store) and s.streamed for s in walk(kernel.body))
    if streams and writer.target.triple.startswith("x86_64"):
        writer.call("void", "llvm.x86.sse.sfence", [])


def _thunk(info: KernelInfo) -> str:
    kernel = info.kernel
    types = ["ptr"] * len(kernel.buffers) + ["i64"] * len(kernel.scalars)
    failing = ["ptr", "ptr"] if info.fails else []
    lines = [line for word, type_ in enumerate(types + failing) for line in unpack(word, type_)]
    operands = [f"{type_} %w{word}" for word, type_ in enumerate(types + failing)]
    operands.insert(len(types), "i64 %chunk")
    lines += [f"  call void @{info.body}({', '.join(operands)})", "  ret void", "}"]
    head = f"define dso_local void @{info.thunk}(ptr %args, i64 %chunk) #0 {{"
    return "\n".join((head, *lines)) + "\n"
