"""The steps of a program, as data. They read and write numbered slots."""

from __future__ import annotations

from frame.core.dataclass import dataclass
from frame.core.devices import Device
from frame.ir.graph import Graph


@dataclass(frozen=True, slots=True)
class RunStep:
    """Run a compiled piece; its updated inputs change in place."""

    piece: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TransferStep:
    """Copy a slot to another device."""

    source: int
    target: int
    origin: Device
    device: Device


@dataclass(frozen=True, slots=True)
class HostStep:
    """Run a graph with the numpy references: what no backend takes."""

    graph: Graph
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class WriteBackStep:
    """Give an input that the program updates its new value, which is in a slot on `device`.

    It happens when every step has ended well, whatever its place. Where the slot is the input's own
    memory on the device, a piece has written it in place already.
    """

    source: int
    input: int
    device: Device


Step = RunStep | TransferStep | HostStep | WriteBackStep
