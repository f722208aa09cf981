"""The backends as the command shows them: each is loaded on its own, and may fail on its own."""

from __future__ import annotations

from typing import Any

from frame.core.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class BackendReport:
    """One backend: whether it loads, the devices that it sees, and the facts that it tells."""

    name: str
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
        names = ("name", "state", "devices", "problem", "facts")
        return {name: getattr(self, name) for name in names}


def backend_reports(with_facts: bool = False) -> list[BackendReport]:
    """Load each registered backend and report it, in the order of the names."""
    from frame.runtime.backends import backend_names

    return [_report(name, with_facts) for name in backend_names()]


def _report(name: str, with_facts: bool) -> BackendReport:
    from frame.runtime.backends import backend

    devices: tuple[str, ...] = ()
    facts: dict[str, str] = {}
    problem = ""
    try:
        found = backend(name)
        devices = tuple(str(device) for device in found.devices())
        facts = dict(found.doctor()) if with_facts or not devices else {}
    except Exception as error:  # noqa: BLE001 - a plug-in may fail in any way; the report says how
        problem = str(error) or type(error).__name__
    return BackendReport(name, devices, problem, facts)
