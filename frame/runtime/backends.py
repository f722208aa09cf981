"""The registry of backends: found through the entry-point group `frame.backends`, loaded lazily."""

from __future__ import annotations

import importlib
import logging
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from frame.core import config
from frame.core.errors import (
    AlreadyExistsError,
    DeviceError,
    InvalidArgumentError,
    NotFoundError,
)
from frame.core.targets import TargetDescription
from frame.hal.interfaces import API_VERSION, Backend

if TYPE_CHECKING:
    import importlib.metadata

_LOG = logging.getLogger("frame.runtime")
_GROUP = "frame.backends"
OWN: Mapping[str, str] = {
    "cpu": "frame.backends.cpu:create_backend",
    "intel_npu": "frame.backends.intel_npu:create_backend",
}
"""Frame's own entry points, as in pyproject.toml: a start without a scan of all packages, and a
checkout that is not installed, find them here."""
_lock = threading.RLock()
_loaded: dict[str, Backend] = {}
_registered: dict[str, Callable[[], Backend]] = {}


def register_backend(name: str, factory: Callable[[], Backend]) -> None:
    """Add a backend of this process; an installed plug-in uses an entry point instead.

    Raises:
        AlreadyExistsError: a backend of that name is known.
    """
    with _lock:
        if name in backend_names():
            raise AlreadyExistsError(f"there is a backend named {name!r} already")
        _registered[name] = factory


def unregister_backend(name: str) -> None:
    """Remove a backend that `register_backend` added."""
    with _lock:
        _registered.pop(name, None)
        _loaded.pop(name, None)


def backend_names() -> tuple[str, ...]:
    """Return the names of all known backends, sorted; none is loaded for it."""
    return tuple(sorted({*OWN, *_plug_ins(), *_registered}))


def backend(name: str | None = None) -> Backend:
    """Return a backend by name; None means FRAME_BACKEND or `cpu`. It is loaded once.

    Raises:
        NotFoundError: there is no backend of that name.
        DeviceError: its plug-in does not load, or speaks another version of the interface.
    """
    name = name or config.get("FRAME_BACKEND") or "cpu"
    found = _loaded.get(name)
    if found is not None:
        return found
    with _lock:
        if name not in _loaded:
            _loaded[name] = _load(name)
        return _loaded[name]


def target_of(owner: Backend, target: TargetDescription | str | None) -> TargetDescription | None:
    """Return the target of a name; a description and None stay what they are.

    Raises:
        InvalidArgumentError: it is none of these, or the backend does not know the name.
    """
    if isinstance(target, str):
        return owner.target(target)
    if target is None or isinstance(target, TargetDescription):
        return target
    raise InvalidArgumentError(
        f"target: expected a name such as 'native' or a TargetDescription, received {target!r:.80}"
    )


def _load(name: str) -> Backend:
    try:
        made = _factory(name)()
    except (ImportError, AttributeError) as error:
        raise DeviceError(f"the backend {name!r} does not load: {error}") from error
    if made.api_version != API_VERSION:
        raise DeviceError(
            f"the backend {name!r} speaks version {made.api_version} of the backend interface, "
            f"expected {API_VERSION}: install a release that fits this frame"
        )
    return made


def _factory(name: str) -> Callable[[], Backend]:
    if name in _registered:
        return _registered[name]
    if name in OWN:
        module, _, attribute = OWN[name].partition(":")
        own: Callable[[], Backend] = getattr(importlib.import_module(module), attribute)
        return own
    found = _plug_ins().get(name)
    if found is None:
        known = ", ".join(backend_names()) or "none"
        raise NotFoundError(f"there is no backend named {name!r}; known backends: {known}")
    factory: Callable[[], Backend] = found.load()
    return factory


def _plug_ins() -> Mapping[str, importlib.metadata.EntryPoint]:
    """The entry points of other packages by name; frame's own names are taken."""
    import importlib.metadata  # reads every installed package: not for one of frame's own backends

    found = importlib.metadata.entry_points(group=_GROUP)
    return {entry.name: entry for entry in found if entry.name not in OWN}
