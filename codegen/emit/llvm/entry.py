"""The entry of a loop module as LLVM functions: itself, and parts where it is long.

LLVM allocates registers and selects instructions in time that grows faster than a function: an
entry of 4,000 launches took half a minute. Its statements move into functions of at most
`PART_STATEMENTS`, each of which loads what it needs from the context:

    i64 @frame_entry(ptr context)                 calls @frame_entry.part.0, .1, ...
    i64 @frame_entry.part.0(ptr context, ...)     launches; 1 = leave at once, a check failed

The further parameters are the loop variables around a part.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from frame.codegen.emit.llvm.statements import (
    STATEMENTS,
    bad_status,
    emit_block,
    leave_if,
    place_buffer,
)
from frame.codegen.emit.llvm.writer import FunctionWriter, Memory, define, llvm_type, unpack
from frame.codegen.emit.sharing import launches_of
from frame.codegen.loops import ir
from frame.codegen.loops.ir import Block, Buffer, Expr, Place, Placement, Stmt, Var
from frame.codegen.loops.traverse import (
    bound_variables,
    expressions,
    post_order,
    trailing_expressions,
    walk,
)
from frame.core.dataclass import dataclass
from frame.core.targets import TargetDescription

PART_STATEMENTS = 64
"""Statements of one function at most, those of its loops and branches included. At 64 a launch
takes LLVM 0.3 ms, as in a short entry; at 512 0.8 ms, at 4,000 8 ms. A part costs a run one call
and the ten loads of the context."""

# The words of the context that the entry receives.
CONTEXT = (
    "pool",
    "launch",
    "fail",
    "status",
    "arena",
    "buffers",
    "symbols",
    "offsets",
    "profile",
    "clock",
)

# Their values are not needed after the statement: a block of these can be cut anywhere.
_ALONE = (ir.Launch, ir.Copy, ir.Return, ir.If, ir.While, ir.For)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Part(Stmt):
    """Statements of the entry that are a function of their own."""

    symbol: str
    body: Block
    variables: tuple[Var, ...]
    returns: bool

    @property
    def inside(self) -> tuple[Block, tuple[Var, ...]]:
        """What its function is made of."""
        return self.body, self.variables


def emit_entry(
    module: ir.Module,
    symbol: str,
    target: TargetDescription,
    declarations: dict[str, str],
    kernels: Mapping[str, object],
    profile: bool,
) -> list[str]:
    """Return the texts of the entry and its parts."""
    launches: dict[Stmt, int] = {
        launch: site for site, launch in enumerate(launches_of(module.entry))
    }
    parts = _Parts(symbol, frozenset(module.entry.scalars))
    body = parts.cut(module.entry.body)

    placements = {placement.buffer: placement for placement in module.entry.placements}

    def started(block: Block, variables: tuple[Var, ...] = ()) -> FunctionWriter:
        writer = FunctionWriter(target, declarations, kernels, profile=profile, launches=launches)
        _start(writer, module.entry.scalars, block, variables)
        writer.memories = _Placements(writer, placements)
        emit_block(writer, block)
        return writer

    return [_whole(symbol, started(body)), *(_part(p, started(*p.inside)) for p in parts.found)]


def _whole(symbol: str, writer: FunctionWriter) -> str:
    bad = bad_status(writer)
    writer.line(f"ret i64 {writer.value(f'zext i1 {bad} to i64')}")
    return define(f"dso_local i64 @{symbol}(ptr %context)", writer)


def _part(part: Part, writer: FunctionWriter) -> str:
    writer.line("ret i64 0")
    names = "".join(f", {llvm_type(v.type)} %p{i}" for i, v in enumerate(part.variables))
    return define(f"internal i64 @{part.symbol}(ptr %context{names}) noinline", writer)


def _start(
    writer: FunctionWriter, symbols: Sequence[Var], block: Block, variables: tuple[Var, ...]
) -> None:
    """Unpack the context and the symbols, and reserve the words of the longest launch."""
    writer.fail, writer.status = "%fail", "%status"
    for word, name in enumerate(CONTEXT):
        writer.prologue += unpack(word, "ptr", "%context", f"%{name}")
    launches = [statement for statement in walk(block) if isinstance(statement, ir.Launch)]
    longest = max(map(_words, launches), default=0)
    writer.prologue.append(f"  %args = alloca [{max(longest, 1)} x i64], align 8")
    for position, scalar in enumerate(symbols):
        name = f"%symbol{position}"
        writer.prologue += unpack(position, "i64", "%symbols", name)
        writer.variables[scalar] = name
    writer.variables.update((var, f"%p{position}") for position, var in enumerate(variables))


class _Parts:
    """Cuts blocks into parts; `found` lists them all."""

    def __init__(self, symbol: str, symbols: frozenset[Var]) -> None:
        self.symbol, self.symbols = symbol, symbols
        self.found: list[Part] = []

    def cut(self, block: Block) -> Block:
        """Return a block of at most about PART_STATEMENTS statements that does the same."""
        block = tuple(map(self._cut_inside, block))
        if _weight(block) <= PART_STATEMENTS or not _may_be_cut(block):
            return block
        return tuple(self._part(run) for run in _runs(block))

    def _cut_inside(self, statement: Stmt) -> Stmt:
        if isinstance(statement, (ir.For, ir.While)):
            return replace(statement, body=self.cut(statement.body))
        if isinstance(statement, ir.If):
            inner = self.cut(statement.then), self.cut(statement.otherwise)
            return replace(statement, then=inner[0], otherwise=inner[1])
        return statement

    def _part(self, block: Block) -> Part:
        statements = list(walk(block))
        plain = [s for s in statements if not isinstance(s, Part)]
        nodes = post_order(expr for s in plain for expr in _reads(s))
        free = {node for node in nodes if isinstance(node, Var)}
        free.update(v for s in statements if isinstance(s, Part) for v in s.variables)
        inside = {v for s in plain for v in bound_variables(s)} | self.symbols
        returns = any(
            isinstance(s, ir.Return) or (isinstance(s, Part) and s.returns) for s in statements
        )
        variables = tuple(sorted(free - inside, key=lambda var: var.name))
        part = Part(f"{self.symbol}.part.{len(self.found)}", block, variables, returns)
        self.found.append(part)
        return part


def _reads(statement: Stmt) -> tuple[Expr, ...]:
    """Return the expressions of a statement, without those of the blocks inside it."""
    return (*expressions(statement), *trailing_expressions(statement))


def _weight(block: Block) -> int:
    return sum(1 for _ in walk(block))


def _may_be_cut(block: Block) -> bool:
    return all(isinstance(s, _ALONE) and not (isinstance(s, ir.For) and s.carried) for s in block)


def _runs(block: Block) -> Iterator[Block]:
    """Cut a block into runs of at most PART_STATEMENTS statements, or one longer statement."""
    run: list[Stmt] = []
    weight = 0
    for statement in block:
        size = _weight((statement,))
        if run and weight + size > PART_STATEMENTS:
            yield tuple(run)
            run, weight = [], 0
        run.append(statement)
        weight += size
    yield tuple(run)


def _words(launch: ir.Launch) -> int:
    return len(launch.buffers) + len(launch.scalars) + 2


class _Placements(dict[Buffer, Memory]):
    """The buffers of the entry in one function, each placed at its start when first asked for."""

    def __init__(self, writer: FunctionWriter, placements: Mapping[Buffer, Placement]) -> None:
        super().__init__()
        self.writer, self.placements = writer, placements

    def __missing__(self, buffer: Buffer) -> Memory:
        place_buffer(self.writer, buffer, _address(self.writer, self.placements[buffer]))
        return self[buffer]


def _address(writer: FunctionWriter, placement: Placement) -> str:
    """Emit the address of an entry buffer."""
    slot = placement.slot
    if placement.place is Place.CONSTANT:
        return f"@constant.{slot}"
    with writer.in_prologue():
        if placement.place is Place.ARGUMENT:
            word = writer.value(f"getelementptr inbounds i64, ptr %buffers, i64 {slot}")
            return writer.value(f"load ptr, ptr {word}, align 8")
        offset = str(slot)
        if placement.place is Place.TABLE:
            word = writer.value(f"getelementptr inbounds i64, ptr %offsets, i64 {slot}")
            offset = writer.value(f"load i64, ptr {word}, align 8")
        return writer.value(f"getelementptr i8, ptr %arena, i64 {offset}")


def _call_part(writer: FunctionWriter, part: Part) -> None:
    words = [f"{llvm_type(var.type)} {writer.variables[var]}" for var in part.variables]
    left = writer.value(f"call i64 @{part.symbol}({', '.join(('ptr %context', *words))})")
    if part.returns:
        leave_if(writer, writer.value(f"icmp ne i64 {left}, 0"))


STATEMENTS[Part] = _call_part
