"""What a schedule sees of a group: its target, its buffers, and how a kernel over them is made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from enum import StrEnum

from frame.codegen.loops.ir import Block, Buffer, Expr, Kernel, Scope, Var
from frame.codegen.loops.traverse import used_buffers, used_variables
from frame.codegen.schedules.sizes import size_expr
from frame.core.dataclass import dataclass
from frame.core.dtypes import DType
from frame.core.shapes import Shape, Size
from frame.core.targets import TargetDescription
from frame.ir.graph import Graph, Node, Value

Index = tuple[Expr, ...]


class Part(StrEnum):
    """Which list of a group an operand of its kernels stands in."""

    CAPTURE = "capture"
    OUTPUT = "output"
    WORKSPACE = "workspace"


@dataclass(frozen=True, slots=True)
class Ref:
    """An operand of a kernel: a capture, an output or a workspace of the group."""

    part: Part
    position: int


@dataclass(frozen=True, slots=True, eq=False)
class KernelCall:
    """One launch of a kernel of a group: which buffers of the group are its parameters, and how
    many chunks there are. `helpers` are kernels that it calls, callees first; equal names mean
    equal kernels. `scalars` are the values of the kernel's scalars, over the symbols alone, and the
    scalars of the group."""

    kernel: Kernel
    operands: tuple[Ref, ...]
    chunks: Expr
    helpers: tuple[Kernel, ...] = ()
    scalars: tuple[Expr, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """A group node on a target.

    `symbols` are the variables that hold the symbols of the graph; `captures`, `outputs` and
    `workspaces` the buffers that kernels have as parameters; `sites` numbers the checks. `scalars`
    hold the bits of constants that the kernels get at each launch.
    """

    node: Node
    target: TargetDescription
    symbols: Mapping[str, Var]
    captures: tuple[Buffer, ...]
    outputs: tuple[Buffer, ...]
    workspaces: tuple[Buffer, ...] = ()
    site: int = 1
    scalars: Mapping[Node, Var] = field(default_factory=dict)

    @property
    def body(self) -> Graph:
        """The graph of the group."""
        body: Graph = self.node.attributes["body"]
        return body

    @property
    def name(self) -> str:
        """A readable stem for the names of its kernels: the ops of the body."""
        ops = [node.op for node in self.body.nodes if node.op not in ("constant", "expand")]
        short = ops if len(ops) <= 4 else [*ops[:3], ops[-1]]
        return "_".join(short)[:48] or "copy"

    def extent(self, size: Size) -> Expr:
        """Return a size as an expression of the kernel."""
        return size_expr(size, self.symbols)

    def extents(self, shape: Shape) -> tuple[Expr, ...]:
        """Return a shape as expressions of the kernel."""
        return tuple(self.extent(size) for size in shape)

    def with_buffers(
        self,
        captures: tuple[Buffer, ...] | None = None,
        outputs: tuple[Buffer, ...] | None = None,
        workspaces: tuple[Buffer, ...] | None = None,
    ) -> Group:
        """Return the group with other views of the same memory."""
        return replace(
            self,
            captures=self.captures if captures is None else captures,
            outputs=self.outputs if outputs is None else outputs,
            workspaces=self.workspaces if workspaces is None else workspaces,
        )

    def call(
        self,
        suffix: str,
        body: Block,
        chunks: Expr,
        note: str = "",
        helpers: tuple[Kernel, ...] = (),
        arguments: Mapping[Var, Expr] | None = None,
    ) -> KernelCall:
        """Make the kernel of `body` and its call; parameters are what the body uses.

        `arguments` are further scalars of the kernel, with their values: what differs between
        kernels that are equal otherwise, and then are one.
        """
        used = used_buffers(body)
        rows = [
            (memory, Ref(part, position))
            for part, memories in (
                (Part.OUTPUT, self.outputs),
                (Part.CAPTURE, self.captures),
                (Part.WORKSPACE, self.workspaces),
            )
            for position, memory in enumerate(memories)
            if memory in used
        ]
        buffers = tuple(memory for memory, _ in rows)
        free = used_variables(body, buffers)
        given = (*self.symbols.values(), *self.scalars.values())
        values: dict[Var, Expr] = {**{var: var for var in given}, **(arguments or {})}
        scalars = tuple(var for var in values if var in free)
        name = f"{self.name}_{suffix}" if suffix else self.name
        kernel = Kernel(name, buffers, scalars, body, note)
        operands = tuple(ref for _, ref in rows)
        return KernelCall(kernel, operands, chunks, helpers, tuple(values[var] for var in scalars))


def make_group(
    node: Node,
    target: TargetDescription,
    symbols: Mapping[str, Var],
    workspaces: Iterable[Size] = (),
    site: int = 1,
) -> Group:
    """Return a group with row-major parameter buffers; workspaces are flat byte buffers."""
    from frame.core.dtypes import uint8

    body: Graph = node.attributes["body"]
    scratch = tuple(
        Buffer(f"workspace{i}", uint8, (_plain(size, symbols),), (), Scope.WORKSPACE)
        for i, size in enumerate(workspaces)
    )
    return Group(
        node,
        target,
        symbols,
        buffers_of(body.input_values, symbols, "in"),
        buffers_of(body.outputs, symbols, "out"),
        scratch,
        site,
    )


def buffers_of(
    values: Iterable[Value], symbols: Mapping[str, Var], stem: str
) -> tuple[Buffer, ...]:
    """Return row-major buffers for values, named `stem0`, `stem1`, ..."""
    return tuple(
        shaped(f"{stem}{position}", value.dtype, value.shape, symbols)
        for position, value in enumerate(values)
    )


def shaped(name: str, dtype: DType, shape: Shape, symbols: Mapping[str, Var]) -> Buffer:
    """Return a row-major global buffer of a graph shape."""
    return Buffer(name, dtype, tuple(_plain(size, symbols) for size in shape))


def _plain(size: Size, symbols: Mapping[str, Var]) -> int | Expr:
    return size if isinstance(size, int) else size_expr(size, symbols)
