"""The registry of backends: found through the entry-point group `frame.backends`, loaded lazily."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from frame.core import config, forks, plugins
from frame.core.arguments import is_finite_number, is_flag, refuse
from frame.core.errors import (
    AlreadyExistsError,
    DeviceError,
    InvalidArgumentError,
    NotFoundError,
)
from frame.core.logs import Logger
from frame.core.targets import TargetDescription
from frame.hal.interfaces import API_VERSION, Backend

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

_LOG = Logger("frame.runtime")
OWN: Mapping[str, str] = {
    "cpu": "frame.backends.cpu:create_backend",
    "intel_npu": "frame.backends.intel_npu:create_backend",
}
"""Frame's own entry points, as in pyproject.toml: a start without a scan of all packages, and a
checkout that is not installed, find them here."""
_lock = forks.recursive_lock()
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
    asked = name or config.get("FRAME_BACKEND") or "cpu"
    found = _loaded.get(asked)
    if found is not None:
        return found
    with _lock:
        if asked not in _loaded:
            _loaded[asked] = _load(asked, "" if name else "FRAME_BACKEND: ")
        return _loaded[asked]


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


TUNING_SECONDS = 60.0
"""What `tune=True` may spend on measuring schedules, in seconds for each compiled entry."""


def tuning_of(owner: Backend, tune: Any) -> float | None:
    """Return the seconds that may go into tuning; None where it was not asked for.

    Raises:
        InvalidArgumentError: it is neither a bool nor a number above 0, or the schedules of the
            backend can't be tuned.
    """
    if tune is None or (is_flag(tune) and not tune):
        return None
    if not is_flag(tune) and not (is_finite_number(tune) and tune > 0):
        refuse("tuning", "tune", "True, False or a number of seconds above 0", tune)
    if not hasattr(owner, "variants"):
        raise InvalidArgumentError(
            f"the {owner.name} backend has no schedules that can be tuned: leave out tune= "
            "(--tune), or compile for the cpu backend"
        )
    return TUNING_SECONDS if is_flag(tune) else float(tune)


def _load(name: str, whose: str) -> Backend:
    factory, source = _factory(name, whose)
    try:
        made = factory()
    except Exception as error:
        raise DeviceError(
            f"the backend {name!r} ({source}) does not load: {type(error).__name__}: {error}"
        ) from error
    problem = _problem(name, made)
    if problem:
        raise DeviceError(
            f"the backend {name!r} ({source}) can't be used: {problem}; install a release that "
            "fits this frame, or remove it"
        )
    return made


_MEMBERS = (
    *Backend.__annotations__,
    *(name for name in vars(Backend) if not name.startswith("_")),
)


def _problem(name: str, made: object) -> str:
    """Return what keeps an object from being the backend of a name; empty if nothing does."""
    version = getattr(made, "api_version", None)
    if version is None:
        return f"expected an object with the members of frame.hal.Backend, received {made!r:.80}"
    if version != API_VERSION:
        return f"it speaks version {version} of the backend interface, expected {API_VERSION}"
    missing = [member for member in _MEMBERS if not hasattr(made, member)]
    if missing:
        return f"it lacks {', '.join(missing)}"
    if made.name != name:  # type: ignore[attr-defined]
        return f"it calls itself {made.name!r}"  # type: ignore[attr-defined]
    return ""


def _factory(name: str, whose: str) -> tuple[Callable[[], Backend], str]:
    """Return what makes a backend, and where it comes from, for people."""
    if name in _registered:
        return _registered[name], "registered by this process"
    if name in OWN:
        return partial(_own, OWN[name]), "frame's own"
    points = _plug_ins().get(name, ())
    if not points:
        known = ", ".join(backend_names()) or "none"
        raise NotFoundError(f"{whose}there is no backend named {name!r}; known backends: {known}")
    sources = [plugins.described(point) for point in points]
    if len(points) > 1:
        raise DeviceError(
            f"several installed packages have a backend named {name!r}: {' and '.join(sources)}; "
            "remove all but one"
        )
    factory = plugins.load(points[0])
    if not callable(factory):
        raise DeviceError(f"{sources[0]} is {factory!r:.80}, expected a function without arguments")
    return factory, sources[0]


def _own(value: str) -> Backend:
    module, _, attribute = value.partition(":")
    made: Backend = getattr(importlib.import_module(module), attribute)()
    return made


def _plug_ins() -> Mapping[str, list[EntryPoint]]:
    """The entry points of other packages by name; frame's own names are taken."""
    found: dict[str, list[EntryPoint]] = {}
    for point in plugins.entry_points(plugins.BACKENDS):
        if point.name not in OWN:
            found.setdefault(point.name, []).append(point)
        elif point.value != OWN[point.name]:
            _LOG.warning(
                "%s is ignored: that name is taken by one of frame's own backends",
                plugins.described(point),
            )
    return found
