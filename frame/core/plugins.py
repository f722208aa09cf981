"""Plug-ins: entry points of other packages, found and loaded only when something needs them.

A plug-in that does not load is named with its distribution, and everything else goes on working.
Looking for entry points reads every installed package, so nothing of frame's own comes this way.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from frame.core import forks
from frame.core.errors import DeviceError
from frame.core.logs import Logger
from frame.core.sources import tree_digest

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

OPS, SCHEDULES, PASSES, BACKENDS = (
    "frame.ops", "frame.schedules", "frame.passes", "frame.backends",
)  # fmt: skip
"""The groups: modules whose import registers ops or schedules, pass classes, backend factories."""

_LOG = Logger("frame.plugins")
_lock = forks.recursive_lock()
_looked: dict[str, tuple[str, ...]] = {}  # group -> sys.path when all of it was loaded
_tops: set[str] = set()  # top-level modules of what was loaded


def entry_points(group: str) -> tuple[EntryPoint, ...]:
    """Return the entry points of a group; nothing is loaded."""
    import importlib.metadata

    return tuple(importlib.metadata.entry_points(group=group))


def described(point: EntryPoint) -> str:
    """Return an entry point and its distribution, for people."""
    owner = point.dist
    source = f"{owner.name} {owner.version}" if owner is not None else "an unknown distribution"
    return f"the plug-in {point.name!r} ({point.value}) of {source}"


def load(point: EntryPoint) -> Any:
    """Return what an entry point names.

    Raises:
        DeviceError: its import fails, whatever it raises.
    """
    try:
        found = point.load()
    except Exception as error:
        raise DeviceError(
            f"{described(point)} does not load: {type(error).__name__}: {error}; install a release "
            "that fits this frame, or remove it"
        ) from error
    _tops.add(point.module.partition(".")[0])
    return found


def load_group(group: str) -> bool:
    """Load every plug-in of a group, once; tell whether that was done now.

    One that does not load is logged. The group is looked at again when `sys.path` has changed.
    """
    path = tuple(sys.path)
    with _lock:
        if _looked.get(group) == path:
            return False
        _looked[group] = path
        for point in entry_points(group):
            try:
                load(point)
            except DeviceError as error:
                _LOG.warning("%s", error)
        return True


def source_digest(module: str) -> str:
    """Return the digest of the sources of the plug-in that a module is of; empty for others."""
    top = module.partition(".")[0]
    loaded = sys.modules.get(top)
    if top not in _tops or loaded is None:
        return ""
    return tree_digest(list(getattr(loaded, "__path__", ())) or [str(loaded.__file__)])


def digest_of_loaded() -> str:
    """Return the digest of the sources of all plug-ins that were loaded."""
    return ",".join(source_digest(top) for top in sorted(_tops))
