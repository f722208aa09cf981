"""Groups that are equal but for their constants share a kernel, which gets these as scalars.

Code is made once for all of a *family*: its constants are numbered, and the launch of a member
passes the bits of its own. A kernel broadcasts them before its loops. What is alone of its kind, or
has few like it, keeps its constants in the code.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping

import numpy as np

from frame.codegen.loops import builder as b
from frame.codegen.loops.ir import INDEX, Expr, Var
from frame.core.dataclass import dataclass
from frame.core.dtypes import DType, float32, float64, uint32
from frame.ir.builder import Rewriter
from frame.ir.graph import Constant, Graph, Node, Value
from frame.ir.hashing import structural_hash

_FAMILY = 4  # how many groups must differ in constants alone, for their kernel to be worth sharing
_READERS = frozenset({"add", "sub", "mul", "maximum", "minimum"})  # whose rules look at no constant
_BITS: Mapping[DType, type] = {float32: np.uint32, float64: np.int64}


@dataclass(frozen=True, slots=True, eq=False)
class Family:
    """The body that stands for groups which differ in constants alone: constant i is the number i.

    `scalars` gives the variable of each constant.
    """

    body: Graph
    scalars: Mapping[Node, Var]

    def bound(self, body: Graph) -> dict[Expr, Expr]:
        """Return the value of each scalar for the launch of a member."""
        bits = (b.index(_bits(node)) for node in _lifted(body))
        return dict(zip(self.scalars.values(), bits, strict=True))


def element(scalar: Var, dtype: DType) -> Expr:
    """Return the constant that a scalar holds the bits of."""
    return b.bitcast(b.cast(scalar, uint32) if dtype == float32 else scalar, dtype)


def families(groups: Iterable[Node]) -> dict[Node, Family]:
    """Return the family of each elementwise group that has one."""
    candidates = [g for g in groups if g.op == "group" and g.attributes["anchor"] == "elementwise"]
    alike = Counter(map(_likeness, candidates))
    likely = [g for g in candidates if alike[_likeness(g)] >= _FAMILY and _lifted(_body(g))]
    masked = {group: _masked(_body(group)) for group in likely}
    members: dict[str, list[Node]] = {}
    for group, body in masked.items():
        members.setdefault(structural_hash(body), []).append(group)
    return {
        group: family
        for same in members.values()
        if len({structural_hash(_body(g)) for g in same}) >= _FAMILY
        for family in (_family(masked[same[0]]),)
        for group in same
    }


def _body(group: Node) -> Graph:
    body: Graph = group.attributes["body"]
    return body


def _likeness(group: Node) -> Hashable:
    """What is quick to compare: only groups that are equal in it are looked at closely."""
    body = _body(group)
    return tuple(node.op for node in body.nodes), tuple(v.type for v in body.outputs)


def _lifted(body: Graph) -> list[Node]:
    """Return the constants that scalars may stand for."""
    found = [n for n in body.nodes if n.op == "constant" and n.results[0].dtype in _BITS]
    return [n for n in found if n.results[0].shape == () and _read_plainly(n.results[0], body)]


def _read_plainly(value: Value, body: Graph) -> bool:
    readers = [node for node, _ in body.uses.get(value, ())]
    return value not in body.returned and all(node.op in _READERS for node in readers)


def _bits(node: Node) -> int:
    array: np.ndarray = node.attributes["value"].array
    return int(array.reshape(-1).view(_BITS[node.results[0].dtype])[0])


def _masked(body: Graph) -> Graph:
    """Return a body with the numbers 0, 1, ... in place of the constants that scalars stand for."""
    numbers = {node: i for i, node in enumerate(_lifted(body))}
    with Rewriter(body) as rewriter:
        for node in body.nodes:
            if node in numbers:
                dtype = node.results[0].dtype.numpy
                rewriter.retype(node, value=Constant(np.array(numbers[node], dtype)))
            else:
                rewriter.copy(node)
        return rewriter.finish()


def _family(body: Graph) -> Family:
    return Family(body, {n: Var(f"constant{i}", INDEX) for i, n in enumerate(_lifted(body))})
