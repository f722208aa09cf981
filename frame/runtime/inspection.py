"""Which generated code computes a node of a graph.

A kernel knows the declared nodes that it stems from (their origins). What a person names - a value
of the drawn graph, a module, a row of a profile - is turned into origins or a kernel's name.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from frame.core.dataclass import dataclass
from frame.core.errors import InvalidArgumentError, NotFoundError, UnimplementedError
from frame.hal.source import Source, joined
from frame.ir.graph import Graph, Node, Value
from frame.ir.printer import number_values

if TYPE_CHECKING:
    from frame.hal.interfaces import KernelCode
    from frame.runtime.loading import Declared, Loaded

_NAMED = 8  # how many names a message gives


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What to show: how it is called, and whether a kernel belongs to it."""

    title: str
    takes: Callable[[KernelCode], bool]


def program_source(declared: Declared, loaded: Loaded, node: Any = None) -> Source:
    """Return the code of an entry, or that of the kernels of both programs that compute a node.

    Raises:
        NotFoundError: there is no such node, or no kernel computes it.
        UnimplementedError: the backend does not tell which code computes a node.
        InvalidArgumentError: `node` is nothing that names one.
    """
    if node is None:
        return joined(f"{declared.graph.name} on {declared.backend}", [loaded.run.source()])
    kernels = loaded.run.kernels()
    if loaded.load is not None:
        kernels += loaded.load.kernels()
    if not kernels and loaded.run.pieces:
        raise UnimplementedError(
            f"expected a backend that tells its kernels, received {declared.backend}, which "
            "compiles a piece as a whole: model.source() shows all of it"
        )
    for wanted in _candidates(node, declared, kernels):
        found = [kernel for kernel in kernels if wanted.takes(kernel)]
        if found:
            names = ", ".join(dict.fromkeys(kernel.kernel for kernel in found))
            return joined(f"{wanted.title}: {names}", [kernel.source for kernel in found])
    raise NotFoundError(
        f"{declared.graph.name}: expected a node that generated code computes, received {node!r}, "
        "which runs in numpy (model.host_steps) or is returned as it came; model.source() shows all"
    )


def _candidates(node: Any, declared: Declared, kernels: Sequence[KernelCode]) -> Iterator[_Wanted]:
    """Yield what a person may mean, the first that has kernels is taken.

    A node that has none of its own was merged into those that read it (a view, a constant, the bias
    before a folded normalisation), or is equal to what it reads.
    """
    name = getattr(node, "kernel", node)  # a row of a profile
    if isinstance(name, str) and any(kernel.kernel == name for kernel in kernels):
        yield _Wanted(f"kernel {name}", lambda kernel: kernel.kernel == name)
        return
    if isinstance(node, bool) or not isinstance(node, (str, int, Node, Value)):
        raise InvalidArgumentError(
            "expected a value of the graph ('%7', 7, a Value or a Node), a kernel of a profile or "
            f"a module path, received {node!r:.80}"
        )
    found = _node(node, declared.graph)
    if found is not None:
        yield from _around(found, declared.graph)
        return
    whole = declared.whole  # the nodes of a loss and of an update have places, too
    paths = [location.module for location in whole.locations]
    inside = [i for i, path in enumerate(paths) if f"{path}.".startswith(f"{node}.")]
    if not node or not inside:
        raise NotFoundError(_unknown(node, declared.graph, kernels, paths))
    yield _of_origins(f"module {node}", inside)
    for each in declared.graph.nodes:
        if each.origin in inside:
            yield from _around(each, declared.graph)


def _around(node: Node, graph: Graph) -> Iterator[_Wanted]:
    """Yield a node, then what reads it, the nearest first, then what it reads."""
    title = _title(node, graph)
    yield _of_origins(title, [node.origin])
    for step in (_readers, _read):
        seen, queue = {node}, deque([node])
        while queue:
            for other in step(queue.popleft(), graph):
                if other not in seen:
                    seen.add(other)
                    queue.append(other)
                    merged = f"{title}, merged into {_title(other, graph)}"
                    yield _of_origins(merged, [other.origin])


def _readers(node: Node, graph: Graph) -> list[Node]:
    return [user for value in node.results for user, _ in graph.uses.get(value, ())]


def _read(node: Node, graph: Graph) -> list[Node]:
    return [value.node for value in node.operands if value.node is not None]


def _of_origins(title: str, origins: Iterable[int | None]) -> _Wanted:
    wanted = frozenset(origins)
    return _Wanted(title, lambda kernel: not wanted.isdisjoint(kernel.origins))


def _title(node: Node, graph: Graph) -> str:
    numbers = number_values(graph)
    values = ", ".join(f"%{numbers[value]}" for value in node.results)
    module = graph.location(node).module
    return f"{values} {node.op}{f' of {module}' if module else ''}"


def _node(node: str | int | Node | Value, graph: Graph) -> Node | None:
    """Return a node of the graph, None where a text may be the path of a module."""
    if isinstance(node, Node):
        if node not in graph.nodes:
            raise NotFoundError(f"expected a node of {graph.name}, received one of another graph")
        return node
    numbers = {number: value for value, number in number_values(graph).items()}
    if isinstance(node, str):
        digits = node.removeprefix("%")
        if not digits.isdecimal():
            return None
        node = int(digits)
    value = node if isinstance(node, Value) else numbers.get(node)
    if value is None or value not in numbers.values():
        received = "one of another graph" if isinstance(node, Value) else f"%{node}"
        raise NotFoundError(
            f"expected a value of {graph.name}, %0 to %{len(numbers) - 1}, received {received}"
        )
    if value.node is None or value in graph.input_values:
        number = number_values(graph)[value]
        raise NotFoundError(
            f"{graph.name}: %{number} is an input, which no kernel computes; "
            f"{len(graph.input_values)} of {len(numbers)} values are"
        )
    return value.node


def _unknown(
    node: object, graph: Graph, kernels: Sequence[KernelCode], paths: Sequence[str]
) -> str:
    import difflib

    names = [kernel.kernel for kernel in kernels]
    names += [".".join(path.split(".")[:depth]) for path in paths for depth in range(1, 12)]
    known = list(dict.fromkeys(name for name in names if name))
    near = difflib.get_close_matches(str(node), known, _NAMED, 0.5)
    shown = ", ".join(near or known[:_NAMED])
    last = len(number_values(graph)) - 1
    return (
        f"{graph.name}: expected a value (%0 to %{last}), a kernel of profile() or a module path, "
        f"received {str(node)!r:.80}; {'nearest' if near else 'known'}: {shown or 'none'}. The "
        "code of another entry is source(node, entry=...)"
    )
