"""The memory of a declared entry by region, from the plans of its pieces."""

from __future__ import annotations

from collections.abc import Mapping

from frame.core.errors import InvalidArgumentError
from frame.core.shapes import shape_symbols
from frame.ir.regions import MemoryRegions, memory_regions
from frame.runtime.loading import Declared
from frame.runtime.planning import plan, simplified


def entry_regions(declared: Declared, sizes: Mapping[str, int]) -> MemoryRegions:
    """Run all passes and return the memory of the program by region; nothing is compiled.

    Raises:
        InvalidArgumentError: a symbol of the inputs has no number.
    """
    symbols = {s for entry in declared.graph.inputs for s in shape_symbols(entry.value.shape)}
    if missing := sorted(symbols - set(sizes)):
        example = ", ".join(f"{name!r}: 64" for name in missing)
        raise InvalidArgumentError(
            f"expected numbers for the symbols {', '.join(missing)}, received "
            f"{dict(sizes)}: pass sizes={{{example}}}"
        )
    total = MemoryRegions((), 0)
    for piece in plan(declared, simplified(declared)).run.pieces:
        if piece.plan is not None:
            total += memory_regions(piece.graph, piece.plan, sizes)
    return total
