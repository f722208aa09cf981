"""Plans as YAML, format `ArchPlan-2`, and back.

Reading is safe: PyYAML's safe loader builds lists, mappings, texts and numbers only; aliases, tags
and double keys are refused, and so is every key, kind, option and shape that does not belong. All
shapes, and the fusion, are computed anew and compared with what the text says.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from frame.blueprint.layers import FUSED, OPTIONS, ArchLayer, LayerKind, make_layer
from frame.blueprint.merge import merge
from frame.blueprint.plan import ArchPlan, InputSpec
from frame.blueprint.shapes import deduce
from frame.core.errors import FrameError, InvalidArgumentError, NotFoundError

VERSION = "ArchPlan-2"
MAX_TEXT = 16 << 20
_PATH = re.compile(r"[A-Za-z0-9_]{1,64}(\.[A-Za-z0-9_]{1,64})*", re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9_]{1,64}", re.ASCII)


# --- writing --------------------------------------------------------------------------------------


def to_yaml(plan: ArchPlan) -> str:
    """Return a plan as YAML.

    Raises:
        NotFoundError: PyYAML is not installed.
    """
    text: str = _yaml().safe_dump(_plan_data(plan), sort_keys=False, default_flow_style=None)
    return text


def _plan_data(plan: ArchPlan) -> dict[str, Any]:
    spec = plan.input_spec
    return {
        "version": VERSION,
        "fused": plan.fused,
        "input_spec": {"c": spec.c, "h": spec.h, "w": spec.w, "features": spec.features},
        "layers": [_layer_data(layer) for layer in plan.layers],
    }


def _layer_data(layer: ArchLayer) -> dict[str, Any]:
    data = {
        "kind": str(layer.kind),
        "name": layer.name,
        "path": layer.path,
        "in_shape": list(layer.in_shape),
        "out_shape": list(layer.out_shape),
        "params": dict(layer.options),
    }
    if layer.parts:
        data["parts"] = [_layer_data(part) for part in layer.parts]
    return data


# --- reading --------------------------------------------------------------------------------------


def from_yaml(text: str) -> ArchPlan:
    """Return the plan of a text that `to_yaml` wrote.

    Raises:
        NotFoundError: PyYAML is not installed.
        InvalidArgumentError: the text is no plan, or its layers don't fit together.
    """
    data = _fields("the plan", _load(text), _PLAN)
    if data["version"] != VERSION:
        raise InvalidArgumentError(f"expected the version {VERSION}, received {data['version']!r}")
    spec = InputSpec(**_fields("input_spec", data["input_spec"], _INPUT))
    stated = tuple(_layer(f"layers[{k}]", row) for k, row in enumerate(data["layers"]))
    primitives = tuple(part for layer in stated for part in layer.primitives())
    deduced = deduce(primitives, spec.flow)
    layers = merge(deduced) if data["fused"] else deduced
    _compare(stated, layers)
    return ArchPlan(spec, layers, data["fused"])


_PLAN = MappingProxyType({"version": str, "fused": bool, "input_spec": dict, "layers": list})
_INPUT = MappingProxyType({"c": int, "h": int, "w": int, "features": bool})
_LAYER = MappingProxyType(
    {"kind": str, "name": str, "path": str, "in_shape": list, "out_shape": list, "params": dict}
)


def _layer(where: str, row: Any) -> ArchLayer:
    kind = _kind(where, row)
    fused = kind in FUSED
    data = _fields(where, row, {**_LAYER, "parts": list} if fused else _LAYER)
    options = _fields(f"{where}.params", data["params"], OPTIONS.get(kind, {}))
    for key, pattern in (("path", _PATH), ("name", _NAME)):
        if not pattern.fullmatch(data[key]):
            raise InvalidArgumentError(
                f"{where}.{key}: expected letters, digits and underscores, in parts joined by "
                f"dots in a path, received {data[key]!r:.60}"
            )
    values = (options[name] for name in OPTIONS.get(kind, {}))
    layer = make_layer(kind, data["name"], data["path"], *values)
    _check_ranges(where, layer)
    parts = tuple(_layer(f"{where}.parts[{k}]", p) for k, p in enumerate(data.get("parts", ())))
    if fused and (not parts or any(part.kind in FUSED for part in parts)):
        raise InvalidArgumentError(f"{where}.parts: expected the layers that {kind} stands for")
    shapes = (_shape(f"{where}.{key}", data[key]) for key in ("in_shape", "out_shape"))
    return replace(layer.with_shapes(*shapes), parts=parts)


def _kind(where: str, row: Any) -> LayerKind:
    name = row.get("kind") if isinstance(row, dict) else None
    known = {str(kind): kind for kind in LayerKind}
    if not isinstance(name, str) or name not in known:
        raise InvalidArgumentError(
            f"{where}.kind: expected one of {', '.join(known)}, received {name!r:.60}"
        )
    return known[name]


def _fields(where: str, data: Any, types: Mapping[str, type]) -> dict[str, Any]:
    """Return a mapping that has exactly these keys, with values of these types."""
    keys = set(data) if isinstance(data, dict) else None
    if keys is None or keys != set(types):
        received = "no mapping" if keys is None else ", ".join(map(repr, data)) or "nothing"
        raise InvalidArgumentError(
            f"{where}: expected the keys {', '.join(types) or '(none)'}, received {received:.200}"
        )
    for key, wanted in types.items():
        if type(data[key]) is not wanted:
            raise InvalidArgumentError(
                f"{where}.{key}: expected {wanted.__name__}, received {data[key]!r:.60}"
            )
    return dict(data)


def _shape(where: str, data: list[Any]) -> tuple[int, int, int, int]:
    if len(data) != 4 or not all(type(size) is int and size > 0 for size in data):
        raise InvalidArgumentError(
            f"{where}: expected [1, height, width, channels], received {data!r:.60}"
        )
    return (data[0], data[1], data[2], data[3])


def _check_ranges(where: str, layer: ArchLayer) -> None:
    """Check the options as the factories do."""
    from frame.blueprint import checks

    for name, value in layer.options:
        place = f"{where}.params"
        if type(value) is int:
            checks.whole(place, name, value, 0 if name == "padding" else 1)
        elif name == "rate":
            checks.real(place, name, value, 0, 1, "[0, 1)")
        elif type(value) is float:
            checks.real(place, name, value, 0, 1, "(0, 1]" if name == "eps" else "[0, 1]")
    options = dict(layer.options)
    if layer.kind in (LayerKind.MAX_POOL, LayerKind.AVG_POOL):
        checks.window(where, options["kernel"], options["stride"], options["padding"], pool=True)
    groups = options.get("groups", 1)
    if options.get("out_channels", groups) % groups:
        raise InvalidArgumentError(f"{where}.params: groups must divide out_channels")


def _compare(stated: tuple[ArchLayer, ...], computed: tuple[ArchLayer, ...]) -> None:
    """Raise InvalidArgumentError where a text states another layer than follows from the rest."""
    for index, (told, found) in enumerate(zip(stated, computed, strict=False)):
        if told != found:
            raise InvalidArgumentError(
                f"layers[{index}]: expected {_summary(found)}, which follows from the layers "
                f"before it, received {_summary(told)}"
            )
    if len(stated) != len(computed):
        raise InvalidArgumentError(
            f"layers: expected {len(computed)} layers after fusion, received {len(stated)}"
        )


def _summary(layer: ArchLayer) -> str:
    options = ", ".join(f"{name}={value}" for name, value in layer.options)
    shapes = f"{list(layer.in_shape)} -> {list(layer.out_shape)}"
    return f"{layer.kind}({options}) {shapes} at {layer.path!r} with {len(layer.parts)} parts"


# --- the YAML library -----------------------------------------------------------------------------


def _yaml() -> Any:
    try:
        import yaml
    except ImportError:
        raise NotFoundError(
            "plans as YAML need PyYAML, which is not installed: pip install pyyaml"
        ) from None
    return yaml


def _load(text: Any) -> Any:
    """Return the data of a text: one document without aliases, tags and double keys."""
    if not isinstance(text, str) or len(text) > MAX_TEXT:
        raise InvalidArgumentError(
            f"expected the text of a plan, at most {MAX_TEXT} characters, received {text!r:.60}"
        )
    yaml = _yaml()
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        _check_node(yaml, node, set(), 0)
        return loader.construct_document(node)
    except FrameError:
        raise
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InvalidArgumentError(f"expected YAML: {str(error)[:300]}") from None


_TAGS = re.compile(r"tag:yaml\.org,2002:(null|bool|int|float|str|seq|map)")
_DEEPEST = 16


def _check_node(yaml: Any, node: Any, seen: set[int], depth: int) -> None:
    """Raise InvalidArgumentError for aliases, tags, double keys and deep nesting."""
    if node is None:
        raise InvalidArgumentError("expected a plan, received an empty document")
    line = node.start_mark.line + 1
    if id(node) in seen or not _TAGS.fullmatch(node.tag) or depth > _DEEPEST:
        raise InvalidArgumentError(
            f"line {line}: expected plain lists, mappings, texts and numbers, received an alias, "
            f"a tag or deeper nesting ({node.tag})"
        )
    seen.add(id(node))
    if isinstance(node, yaml.MappingNode):
        keys = [key.value for key, _ in node.value]
        double = next((key for k, key in enumerate(keys) if key in keys[:k]), None)
        if double is not None:
            raise InvalidArgumentError(
                f"line {line}: expected each key once, received {double!r:.60} twice"
            )
    children = (part for entry in node.value for part in _parts(entry))
    for child in children if not isinstance(node, yaml.ScalarNode) else ():
        _check_node(yaml, child, seen, depth + 1)


def _parts(entry: Any) -> tuple[Any, ...]:
    return entry if isinstance(entry, tuple) else (entry,)
