"""What the compiler must know of the machine that it generates code for. Pure data."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

from frame.core.dataclass import dataclass
from frame.core.errors import InvalidArgumentError

if TYPE_CHECKING:  # it needs numpy, which a process that only compiles has no use for
    from frame.core.dtypes import DType

_AT_LEAST_ONE = ("vector_bits", "vector_registers", "cache_line", "fma_units", "fma_latency")
_NOT_NEGATIVE = ("l1", "l2", "l3")


@dataclass(frozen=True, slots=True)
class TargetDescription:
    """A code generation target.

    `vector_bits` is the width of one vector register, `l1`, `l2` and `l3` are bytes of data cache
    a core may use (0 where there is none), `cache_line` is bytes, `fma_latency` is cycles. `half`
    says what the target does with 16-bit floats: "none" (decomposed), "convert" (conversion
    instructions only) or "native" (arithmetic). `symbols` tells whether code may take sizes at run
    time. `intrinsics` are the names of the instructions that schedules may ask for.
    """

    name: str
    triple: str
    cpu: str
    features: tuple[str, ...] = ()
    vector_bits: int = 128
    vector_registers: int = 16
    l1: int = 32 * 1024
    l2: int = 256 * 1024
    l3: int = 0
    cache_line: int = 64
    fma: bool = False
    fma_units: int = 1
    fma_latency: int = 4
    half: str = "none"
    symbols: bool = True
    intrinsics: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        for least, names in ((1, _AT_LEAST_ONE), (0, _NOT_NEGATIVE)):
            for name in names:
                if getattr(self, name) < least:
                    raise InvalidArgumentError(
                        f"target {self.name}: expected {name} of {least} or more, "
                        f"received {getattr(self, name)}"
                    )
        if self.half not in ("none", "convert", "native"):
            raise InvalidArgumentError(
                f"target {self.name}: expected half to be none, convert or native, "
                f"received {self.half!r}"
            )

    def lanes(self, dtype: DType) -> int:
        """Return how many elements of `dtype` one vector register holds, at least 1."""
        return max(1, self.vector_bits // (dtype.itemsize * 8))

    def text(self) -> str:
        """Return the canonical one-line text of every field, for cache keys and `inspect`."""
        parts = (f"{field.name}={_text(getattr(self, field.name))}" for field in fields(self))
        return f"target({', '.join(parts)})"

    def __str__(self) -> str:
        return self.text()


def _text(value: object) -> str:
    if isinstance(value, (tuple, frozenset)):
        return "[" + " ".join(sorted(value)) + "]"
    return "true" if value is True else "false" if value is False else str(value)
