"""Compiled models as facts: what `compile`, `run` and `inspect` show of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    from frame.hal.interfaces import Port
    from frame.runtime.model import CompiledModel

PREVIEW = 8


def port_facts(ports: tuple[Port, ...]) -> list[dict[str, str]]:
    """Return name and type of each port."""
    return [{"name": port.name, "type": str(port.type)} for port in ports]


def model_facts(model: CompiledModel) -> dict[str, Any]:
    """Return the signature, the parameters and the device of the entry that a call runs."""
    from frame.runtime.summary import counts

    entry = model.entry(model.mode)
    signature = entry.signature
    parameters, buffers = counts(model)
    values = {name: model.store.array(name) for name in model.params}
    return {
        "model": model.name,
        "backend": entry.declared.backend,
        "target": entry.declared.on.name,
        "inputs": port_facts(entry.inputs),
        "outputs": port_facts(signature.outputs),
        "symbols": list(signature.symbols),
        "parameters": parameters,
        "buffers": buffers,
        "parameter_bytes": sum(array.nbytes for array in values.values()),
        "host_steps": list(model.host_steps),
    }


def model_text(data: dict[str, Any]) -> dict[str, Any]:
    """Return the facts of a model as rows for people."""
    from frame.cli.output import bytes_text

    rows = {
        **{name: data[name] for name in ("model", "backend", "target")},
        "inputs": "\n".join(f"{port['name']}: {port['type']}" for port in data["inputs"]),
        "outputs": "\n".join(f"{port['name']}: {port['type']}" for port in data["outputs"]),
        "parameters": f"{data['parameters']:,}",
        "memory": bytes_text(data["parameter_bytes"]),
    }
    if data["buffers"]:
        rows["buffers"] = f"{data['buffers']:,} elements, in the memory above"
    if data["host_steps"]:
        rows["runs in numpy"] = ", ".join(data["host_steps"])
    return rows


def array_facts(array: np.ndarray) -> dict[str, Any]:
    """Return shape, dtype and range of an array; the range is of the numbers that are not NaN."""
    import numpy as np

    found: dict[str, Any] = {"dtype": array.dtype.name, "shape": list(array.shape)}
    if not array.size or array.dtype.kind not in "fiub":
        return found
    found |= {"min": _number(np.nanmin(array)), "max": _number(np.nanmax(array))}
    if array.dtype.kind == "f":
        found |= {"mean": _number(array.mean(dtype=np.float64))}
        found |= {"nan": int(np.isnan(array).sum())}
    return found


def _number(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value


def array_text(array: np.ndarray) -> str:
    """Return one line about an array: its type, range, and its first elements."""
    data = array_facts(array)
    sizes = ", ".join(map(str, data["shape"]))
    words = [f"{data['dtype']}[{sizes}]"]
    words += [f"{name} {data[name]:.6g}" for name in ("min", "max", "mean") if name in data]
    if data.get("nan"):
        words.append(f"{data['nan']} NaN")
    first = ", ".join(f"{float(value):.6g}" for value in array.ravel()[:PREVIEW])
    more = ", ..." if array.size > PREVIEW else ""
    return f"{'  '.join(words)}\n[{first}{more}]"
