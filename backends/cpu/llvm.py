"""LLVM as an assembler: IR text in, an ELF object or assembly text out.

This is the only module that imports llvmlite, and it does so on the first compile, so that a
process that finds its objects in a cache never pays for it. LLVM reports many errors by ending the
process; everything known to do so is refused before LLVM's back end sees it.
"""

from __future__ import annotations

import functools
import os
import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any

from frame.backends.cpu import elf
from frame.core.errors import InternalError

if TYPE_CHECKING:
    from frame.core.targets import TargetDescription

_LOCK = threading.Lock()  # LLVM's contexts and llvmlite's calls are for one thread at a time
if hasattr(os, "register_at_fork"):
    # A fork waits for a running compile: the child would find LLVM's locks held by nobody.
    os.register_at_fork(
        before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_LOCK.release
    )

# Text that makes LLVM stop the process on some target, found outside strings and comments: inline
# assembly needs a parser that is not linked in, the others have no lowering on a CPU of ours.
_WORDS = (
    "asm", "gc", "vscale", "x86_amx", "x86_fp80", "ppc_fp128", "musttail", "catchswitch",
)  # fmt: skip
_REFUSED = (  # compiled by whoever compiles
    r'"[^"]*"|;[^\n]*'
    rf"|(?<![%@.$\w-])(?:({'|'.join(_WORDS)})|i(\d{{3,}}))"
    r"(?![.$\w:-])"
)
# That search is slow, and a text without one of the words or this has nothing for it to find.
_WIDE = r"i\d{3}(?<![%@.$\w-]i\d\d\d)"
_WIDEST_INTEGER = 128
_OPTIMISER_LEVEL = 1
# Passes over a whole module, before those over its functions; at level 0 the first one alone.
_PROGRAM = (
    "always_inliner", "ipsccp", "global_opt", "dead_arg_elimination", "global_dead_code_eliminate",
)  # fmt: skip

# An x86 intrinsic without its feature ends in "LLVM ERROR: Cannot select". Longest prefix wins.
_INTRINSIC_FEATURES: dict[str, tuple[str, tuple[str, ...]]] = {
    "llvm.x86.sse2.": ("x86_64", ()),
    "llvm.x86.sse.": ("x86_64", ()),
    "llvm.x86.ssse3.": ("x86_64", ("ssse3",)),
    "llvm.x86.sse41.": ("x86_64", ("sse4.1",)),
    "llvm.x86.avx.": ("x86_64", ("avx",)),
    "llvm.x86.avx2.": ("x86_64", ("avx2",)),
    "llvm.x86.vcvtps2ph.": ("x86_64", ("f16c",)),
    "llvm.x86.vcvtph2ps.": ("x86_64", ("f16c",)),
    "llvm.x86.avx512.": ("x86_64", ("avx512f", "avx512bw", "avx512dq", "avx512vl")),
    "llvm.x86.avx512.vpdp": ("x86_64", ("avx512vnni",)),
    "llvm.x86.avx512bf16.": ("x86_64", ("avx512bf16",)),
    "llvm.aarch64.neon.": ("aarch64", ("neon",)),
    "llvm.aarch64.neon.bfdot.": ("aarch64", ("bf16",)),
    "llvm.aarch64.hint": ("aarch64", ()),
    "llvm.aarch64.get.fpcr": ("aarch64", ()),
    "llvm.aarch64.set.fpcr": ("aarch64", ()),
}


def filled(template: str, names: Mapping[str, object]) -> str:
    """Return a template with the value of each `$name` in its place.

    As `string.Template`, whose import takes longer than reading the pool's code from the cache.
    """
    for name in sorted(names, key=len, reverse=True):  # `$host_words` before `$host`
        template = template.replace(f"${name}", str(names[name]))
    return template


def compile_ir(
    text: str, target: TargetDescription, level: int = 2, others: frozenset[str] = frozenset()
) -> bytes:
    """Return the ELF relocatable object that LLVM makes of a module's text.

    The module is parsed, verified and checked against the target first. Loop and SLP vectorisers
    are off: the loop IR vectorises. `level` is LLVM's optimisation level, 0 to 3; `others` are the
    symbols that the other objects of the artefact define.

    Raises InternalError when the text is not a valid module for the target, or when the object
    would need another symbol from outside itself.
    """
    with _optimised(text, target, level, others) as (machine, module):
        data: bytes = machine.emit_object(module)
    missing = [name for name in elf.undefined_symbols(data) if name not in others]
    if missing:
        raise InternalError(
            f"expected a self-contained object, received calls to {', '.join(missing)} "
            f"from the module for {target.name}; decompose what lowers to a library call, and give "
            'every function the attribute "no-builtins"'
        )
    return data


def assembly(
    text: str, target: TargetDescription, level: int = 2, others: frozenset[str] = frozenset()
) -> str:
    """Return the assembly text that LLVM makes of a module's text; errors as in `compile_ir`."""
    with _optimised(text, target, level, others) as (machine, module):
        result: str = machine.emit_assembly(module)
    return result


def functions_of(text: str, names: Iterable[str]) -> str:
    """Return the functions of an assembly text that have these names, with their constants.

    What LLVM has inlined is missing, and a copy that it fitted to its callers is there, too.
    """
    wanted = tuple(names)
    found = []
    for part, name in _functions_in(text):
        if name in wanted or name.partition(".specialized.")[0] in wanted:
            found.append(part)
    return "".join(found)


def _functions_in(text: str) -> Iterator[tuple[str, str]]:
    """Yield (lines, name) of each function; the constants of one stand before it."""
    lines: list[str] = []
    name = ""
    for line in text.splitlines(keepends=True):
        if name and not line.startswith("\t.size\t"):
            yield "".join(lines), name
            lines, name = [], ""
        lines.append(line)
        size = re.match(r"\t\.size\t([\w.$]+), \.Lfunc_end", line)
        name = size[1] if size and not size[1].startswith(".L") else name
    if name:
        yield "".join(lines), name


def optimised_ir(text: str, target: TargetDescription, level: int = 2) -> str:
    """Return the module's text after LLVM's optimiser; errors as in `compile_ir`."""
    with _optimised(text, target, level) as (_, module):
        return str(module)


@contextmanager
def _optimised(
    text: str, target: TargetDescription, level: int, others: frozenset[str] = frozenset()
) -> Iterator[tuple[Any, Any]]:
    """Yield (target machine, optimised module) under the process-wide lock, and free both."""
    if level not in (0, 1, 2, 3):
        raise InternalError(f"expected an optimisation level from 0 to 3, received {level}")
    _refuse_text(text)
    with _LOCK:
        binding = _binding()
        machine = _machine(binding, target, level)
        context = binding.create_context()  # a context of its own: its types die with it
        try:
            module = _parse(binding, text, context)
            try:
                _refuse_declarations(module, target, others)
                _optimise(binding, machine, module, target, level)
                yield machine, module
            finally:
                module.close()
        finally:
            context.close()
            machine.close()


@functools.cache
def _binding() -> ModuleType:
    """Import llvmlite once and initialise every CPU target that it holds."""
    import llvmlite.binding as binding

    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    return binding


def _machine(binding: ModuleType, target: TargetDescription, level: int) -> Any:
    """Return a target machine: small position-independent code that a loader can place anywhere."""
    features = ",".join(f"+{feature}" for feature in target.features)
    try:
        found = binding.Target.from_triple(target.triple)
        return found.create_target_machine(
            cpu=target.cpu, features=features, opt=level, reloc="pic", codemodel="small"
        )
    except RuntimeError as error:
        raise InternalError(
            f"expected a triple that this LLVM can generate code for, received {target.triple!r} "
            f"of target {target.name}: {error}"
        ) from error


def _parse(binding: ModuleType, text: str, context: Any) -> Any:
    try:
        module = binding.parse_assembly(text, context)
    except RuntimeError as error:
        raise InternalError(
            f"expected LLVM IR, received text that does not parse: {error}"
        ) from error
    try:
        module.verify()
    except RuntimeError as error:
        module.close()
        raise InternalError(f"expected a valid LLVM module, the verifier says: {error}") from error
    return module


def _optimise(
    binding: ModuleType, machine: Any, module: Any, target: TargetDescription, level: int
) -> None:
    """Run the passes of `_PROGRAM` over the module, then LLVM's simplification of level 1 over each
    function that is left, without vectorisers and loop unroller.

    The loop IR vectorises and unrolls; what LLVM would unroll on top costs a third of the compile
    time and gains nothing. What level 2 adds (value numbering, jump threading, more inlining) costs
    a quarter of the optimiser's time, and the kernels run no faster for it. Nor do they for the
    second half of LLVM's pipeline, which simplifies everything once more after its vectorisers. The
    code generator works at the level asked for.
    """
    module.triple = target.triple
    module.data_layout = str(machine.target_data)
    options = binding.create_pipeline_tuning_options(speed_level=min(level, _OPTIMISER_LEVEL))
    options.loop_vectorization = False
    options.slp_vectorization = False
    options.loop_unrolling = False
    builder = binding.create_pass_builder(machine, options)
    whole, single = binding.create_new_module_pass_manager(), builder.getFunctionPassManager()
    try:
        for name in _PROGRAM if level else _PROGRAM[:1]:
            getattr(whole, f"add_{name}_pass")()
        whole.run(module, builder)
        for function in module.functions:
            if not function.is_declaration:
                single.run(function, builder)
    finally:
        single.close()
        whole.close()
        builder.close()
        options.close()


def _refuse_text(text: str) -> None:
    if not (any(word in text for word in _WORDS) or re.search(_WIDE, text)):
        return
    for found in re.finditer(_REFUSED, text):
        word, width = found.groups()
        if word is not None:
            raise InternalError(f"expected LLVM IR without {word!r}, found it at {found.start()}")
        if width is not None and int(width) > _WIDEST_INTEGER:
            raise InternalError(
                f"expected integers of at most {_WIDEST_INTEGER} bits, found i{width}"
            )


def _refuse_declarations(module: Any, target: TargetDescription, others: frozenset[str]) -> None:
    """Refuse functions from outside but `others`, and intrinsics that the target lacks."""
    architecture = target.triple.partition("-")[0]
    for function in module.functions:
        if not function.is_declaration or function.name in others:
            continue
        name = function.name
        if not name.startswith("llvm."):
            raise InternalError(
                f"expected a self-contained module, received a declaration of {name!r}; "
                "pass its address in the arguments"
            )
        if name.startswith(("llvm.x86.", "llvm.aarch64.", "llvm.arm.")):
            _refuse_intrinsic(name, architecture, target)


def _refuse_intrinsic(name: str, architecture: str, target: TargetDescription) -> None:
    prefixes = [prefix for prefix in _INTRINSIC_FEATURES if name.startswith(prefix)]
    if not prefixes:
        raise InternalError(f"expected a known target intrinsic, received {name!r}")
    wanted, features = _INTRINSIC_FEATURES[max(prefixes, key=len)]
    missing = [feature for feature in features if feature not in target.features]
    if wanted != architecture or missing:
        raise InternalError(
            f"expected an intrinsic of target {target.name} ({architecture}), received {name!r}, "
            f"which needs {wanted} with {', '.join(features) or 'its base instructions'}"
        )


# --- what threads need of an architecture ---------------------------------------------------------

RELAX: Mapping[str, str] = {
    "x86_64": "@llvm.x86.sse2.pause()",
    "aarch64": "@llvm.aarch64.hint(i32 1)",  # YIELD
}
"""What a spinning thread does between two looks, by architecture."""

CONTROL: Mapping[str, str] = {
    "x86_64": """
declare void @llvm.x86.sse.stmxcsr(ptr)
declare void @llvm.x86.sse.ldmxcsr(ptr)
define internal i64 @read_control() #2 {
  %word = alloca i32, align 4
  call void @llvm.x86.sse.stmxcsr(ptr %word)
  %value = load i32, ptr %word
  %wide = zext i32 %value to i64
  ret i64 %wide
}
define internal void @write_control(i64 %wide) #2 {
  %word = alloca i32, align 4
  %value = trunc i64 %wide to i32
  store i32 %value, ptr %word
  call void @llvm.x86.sse.ldmxcsr(ptr %word)
  ret void
}""",
    "aarch64": """
declare i64 @llvm.aarch64.get.fpcr()
declare void @llvm.aarch64.set.fpcr(i64)
define internal i64 @read_control() #2 {
  %value = call i64 @llvm.aarch64.get.fpcr()
  ret i64 %value
}
define internal void @write_control(i64 %value) #2 {
  call void @llvm.aarch64.set.fpcr(i64 %value)
  ret void
}""",
}
"""Reading and writing the floating-point control word (MXCSR, FPCR)."""

CONTROL_MASK: Mapping[str, int] = {"x86_64": 0xFFC0, "aarch64": -1}
"""Its modes, without the sticky exception flags."""

CONTROL_USUAL: Mapping[str, int] = {"x86_64": 0x1F80, "aarch64": 0}
"""The modes of a thread that nobody has changed."""
