"""rematerialisation: compute forward values again in the backward part, rather than keep them.

    forward    a -> b -> c -> loss       kept until the backward part reads them: a, b, c
    backward   b' of a, c' of b', gradients of c', of b', of a       kept: a

What is computed again is a copy of the very group that fusion has made, with the random streams in
it, so every value is the same to the bit; before fusion a copy could land in another group, whose
reductions round in another way. It works on graphs that update parameters and leaves others alone.

Two modes. `modules`: what is made inside of a module is computed again from what enters it.
`budget`: the memory plans of several choices are compared, the cheapest first, until one has a
small enough arena. Source: Chen, Xu, Zhang, Guestrin, "Training Deep Nets with Sublinear Memory
Cost", arXiv 1604.06174: the search over segments is its algorithm 3, with real plans in the place
of its estimate.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from frame.compiler.pass_manager import PassContext
from frame.compiler.passes.memory_planning import PRODUCED as PLAN
from frame.compiler.passes.memory_planning import MemoryPlanning
from frame.core.dataclass import dataclass
from frame.core.errors import InvalidArgumentError
from frame.ir.graph import Graph, Role

if TYPE_CHECKING:
    from frame.compiler.passes.forward import Forward


@dataclass(frozen=True)
class Rematerialisation:
    """Orders the backward part; computes values of the forward part again where it reads them.

    Attributes:
        modules: patterns of module paths, separated by spaces, such as `encoder.*`; each module
            that matches is a unit, and what is below it belongs to it.
        budget: the bytes that the arena of a training step may have; 0 for any number.
    """

    name: ClassVar[str] = "rematerialisation"
    modules: str = ""
    budget: int = 0

    def run(self, graph: Graph, context: PassContext) -> Graph:
        """Return the graph with copies of forward groups in its backward part.

        Raises:
            InvalidArgumentError: no module matches a pattern; the budget is too small, which names
                the least arena that was found; sizes are symbols; or the target has no groups, and
                its memory is not planned.
        """
        if not _trains(graph):
            return graph
        asked = bool(self.modules or self.budget)
        if asked:
            _require_plans(graph, context)
        elif not context.capabilities.anchors:
            return graph
        from frame.compiler.passes.early_updates import with_early_updates
        from frame.compiler.passes.forward import Forward

        forward = Forward(with_early_updates(Forward(graph)))
        if not asked or (not self.modules and arena_size(forward.graph, context) <= self.budget):
            return forward.graph
        from frame.compiler.passes.recompute import recomputed
        from frame.compiler.passes.units import inside

        if self.modules:
            chosen = inside(forward, self.modules.split())
            context.count("recomputed", len(chosen))
            forward = Forward(recomputed(forward, chosen))
        return self._within_budget(forward, context) if self.budget else forward.graph

    def _within_budget(self, forward: Forward, context: PassContext) -> Graph:
        from frame.compiler.passes.recompute import recomputed
        from frame.compiler.passes.segments import choices

        sizes = []
        for chosen in choices(forward):
            made = recomputed(forward, chosen)
            sizes.append(arena_size(made, context))
            if sizes[-1] <= self.budget:
                context.count("recomputed", len(chosen))
                return made
        raise InvalidArgumentError(
            f"expected an arena of at most {self.budget:,} bytes for a training step of "
            f"{forward.graph.name}, the least that rematerialisation reaches is {min(sizes):,} "
            f"(without it {sizes[0]:,}): raise the budget, or take a smaller batch"
        )


def arena_size(graph: Graph, context: PassContext) -> int:
    """Return the bytes of the arena that is planned for a graph of groups without symbols."""
    trial = replace(context, instruments=(), produced={}, counts={})
    MemoryPlanning(check=False).run(graph, trial)
    return int(trial.produced[PLAN].arena_size)


def _trains(graph: Graph) -> bool:
    """Whether a graph updates a parameter."""
    return any(graph.inputs[u.input_index].role is Role.PARAMETER for u in graph.updates)


def _require_plans(graph: Graph, context: PassContext) -> None:
    if not context.capabilities.anchors:
        raise InvalidArgumentError(
            f"expected a target whose memory frame plans to rematerialise {graph.name}: "
            f"{context.target.name} takes whole graphs"
        )
    if graph.symbols:
        raise InvalidArgumentError(
            f"expected numbers for the sizes {', '.join(graph.symbols)} of {graph.name} to "
            f"rematerialise it: pass sizes={{{graph.symbols[0]!r}: 64}}, or drop_last=True in a "
            "task"
        )
