"""A loop module as one LLVM module: kernels, thunks, constants and the entry.

A kernel becomes an internal function of its buffers, scalars, the chunk and (where it reports bad
values) the fail function and the status words. A thunk `void @NAME(ptr args, i64 chunk)`, which the
launch function calls, unpacks one word a parameter. The entry is `i64 @NAME(ptr context)`: 0 = ok,
1 = a check failed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping

from frame.codegen.emit.llvm.entry import emit_entry
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


def emit_module(module: Module, target: TargetDescription, profile: bool = False) -> str:
    """Return the LLVM IR text of a loop module for a target.

    The text defines `entry_symbol(module)` and the thunks of `kernel_symbols(module)` and needs no
    other symbol. It holds no data layout: the compiler's target machine sets it. With `profile`
    each Launch reads the clock before and after and adds to its profile words, which must exist.

    Raises:
        InternalError: loop IR that the verifier would refuse.
    """
    declarations: dict[str, str] = {}
    kernels = _kernel_infos(module)
    functions = _functions(kernels, kernels, target, declarations)
    functions += emit_entry(module, entry_symbol(module), target, declarations, kernels, profile)
    constants = [_constant(index, data) for index, data in enumerate(module.constants)]
    return _text(module, target, constants, functions, declarations)


def emit_kernel(module: Module, target: TargetDescription, name: str) -> str:
    """Return the LLVM IR text of one kernel and those that it calls, as `emit_module` has them."""
    declarations: dict[str, str] = {}
    kernels = _kernel_infos(module)
    wanted = [kernel.name for kernel in called_kernels(module, name)]
    functions = _functions(kernels, wanted, target, declarations)
    return _text(module, target, [], functions, declarations)


def _functions(
    kernels: Mapping[str, KernelInfo],
    names: Iterable[str],
    target: TargetDescription,
    declarations: dict[str, str],
) -> list[str]:
    functions: list[str] = []
    for info in map(kernels.__getitem__, names):
        functions.append(_kernel_body(info, FunctionWriter(target, declarations, kernels)))
        if info.thunk is not None:
            functions.append(_thunk(info))
    return functions


def _text(
    module: Module,
    target: TargetDescription,
    constants: list[str],
    functions: list[str],
    declarations: Mapping[str, str],
) -> str:
    header = [f"; module {safe_name(module.name)}", f'target triple = "{target.triple}"']
    footer = [_attributes(target), '!0 = distinct !{!0, !1}\n!1 = !{!"llvm.loop.unroll.full"}']
    parts = (header, constants, functions, sorted(declarations.values()), footer)
    return "\n".join("\n".join(part) + "\n" for part in parts)


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


def _kernel_body(info: KernelInfo, writer: FunctionWriter) -> str:
    kernel = info.kernel
    parameters = [f"ptr %b{position}" for position in range(len(kernel.buffers))]
    for position, scalar in enumerate(kernel.scalars):
        writer.variables[scalar] = f"%s{position}"
        parameters.append(f"i64 %s{position}")
    parameters.append("i64 %chunk")
    if info.fails:
        writer.fail, writer.status = "%fail", "%status"
        parameters += ["ptr %fail", "ptr %status"]
    for position, buffer in enumerate(kernel.buffers):
        place_buffer(writer, buffer, f"%b{position}")
    emit_block(writer, kernel.body)
    writer.line("ret void")
    inline = " noinline" if info.shared else ""
    signature = f"internal void @{info.body}({', '.join(parameters)}){inline}"
    return define(signature, writer, kernel.note)


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
