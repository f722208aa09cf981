"""Loop IR to LLVM IR text (opaque pointers, LLVM 20 or later), for x86-64 and AArch64."""

from frame.codegen.emit.llvm.module import (
    ModulePart,
    emit_kernel,
    emit_module,
    emit_parts,
    entry_symbol,
    kernel_symbols,
    launch_order,
)

__all__ = [
    "ModulePart",
    "emit_kernel",
    "emit_module",
    "emit_parts",
    "entry_symbol",
    "kernel_symbols",
    "launch_order",
]
