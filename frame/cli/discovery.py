"""The backends as the command shows them: found by entry points, each loaded on its own."""

from __future__ import annotations

import importlib.metadata
from dataclasses import dataclass
from typing import Any

GROUP = "frame.backends"


@dataclass(frozen=True, slots=True)
class BackendReport:
    """One backend: where it comes from, whether it loads, the devices and facts that it names."""

    name: str
    source: str
    version: str
    devices: tuple[str, ...]
    problem: str
    facts: dict[str, str]

    @property
    def state(self) -> str:
        """`ready`, `no device`, or `unusable`."""
        if self.problem:
            return "unusable"
        return "ready" if self.devices else "no device"

    def as_data(self) -> dict[str, Any]:
        """Return the report as JSON data."""
        names = ("name", "state", "devices", "source", "version", "problem", "facts")
        return {name: getattr(self, name) for name in names}


def backend_reports(with_facts: bool = False) -> list[BackendReport]:
    """Load each registered backend and report it, in the order of the names."""
    points = {point.name: point for point in importlib.metadata.entry_points(group=GROUP)}
    return [_report(points[name], with_facts) for name in sorted(points)]


def _report(point: importlib.metadata.EntryPoint, with_facts: bool) -> BackendReport:
    version = point.dist.version if point.dist else ""
    devices: tuple[str, ...] = ()
    facts: dict[str, str] = {}
    problem = ""
    try:
        backend = point.load()()
        devices = tuple(str(device) for device in backend.devices())
        facts = dict(backend.doctor()) if with_facts else {}
    except Exception as error:  # noqa: BLE001 - a plug-in may fail in any way; the report says how
        problem = f"{type(error).__name__}: {error}"
    return BackendReport(point.name, point.value, version, devices, problem, facts)
