"""The intel_npu backend: a graph becomes one `openvino.Model`, compiled by OpenVINO's plug-ins."""

from __future__ import annotations

import hashlib
import io
import platform
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from frame.backends.intel_npu import sdk
from frame.backends.intel_npu.executable import Artifact, Inspection, NpuExecutable
from frame.backends.intel_npu.model import TYPE_NAMES, BuiltModel, build_model
from frame.backends.intel_npu.opset_table import ROWS, refusal
from frame.core import config
from frame.core.devices import Device
from frame.core.errors import DeviceError, InvalidArgumentError, NotFoundError
from frame.core.targets import TargetDescription
from frame.hal.host import HostAllocator, HostStream
from frame.hal.interfaces import (
    API_VERSION,
    ArtifactStore,
    Capabilities,
    GroupInfo,
    Piece,
    Signature,
)
from frame.ir.graph import Graph, Node
from frame.ops.registry import lookup

TARGETS: Mapping[str, str] = MappingProxyType({"openvino-npu": "NPU", "openvino-cpu": "CPU"})
"""target name -> OpenVINO's name of the device, in the order of preference."""

PRECISIONS = ("f32", "bf16", "f16")
"""What the option `inference_precision` takes: what OpenVINO may compute float32 in."""


class IntelNpuBackend:
    """Compiles and runs pieces with OpenVINO, on `NPU` where there is one and on `CPU` else.

    Option `inference_precision`: "f32" (the default), or "bf16" or "f16" for mixed precision. It
    is OpenVINO's hint for the CPU; an NPU computes in its own precision, float16.
    """

    name = "intel_npu"
    api_version = API_VERSION

    def devices(self) -> Sequence[Device]:
        """Return `intel_npu:0`, or nothing where the openvino wheel is missing."""
        return () if sdk.installed_version() == "missing" else (Device(self.name, 0),)

    def capabilities(self, target: TargetDescription) -> Capabilities:
        """Return the ops of the opset table; there are no groups, and the runtime keeps state."""
        composites = frozenset(op for op in ROWS if lookup(op).decomposition is not None)
        return Capabilities(
            native=frozenset(ROWS),
            composites=composites,
            symbols=target.symbols,
            dtypes=frozenset(TYPE_NAMES),
            donation=False,
        )

    def target(self, name: str | None = None) -> TargetDescription:
        """Return `openvino-npu` or `openvino-cpu`; None means the NPU where there is one.

        Raises:
            NotFoundError: there is no target of that name.
        """
        if name in (None, "native"):
            name = _preferred_target()
        if name not in TARGETS:
            raise NotFoundError(
                f"intel_npu has no target {name!r}; its targets are: {', '.join(TARGETS)}"
            )
        npu = TARGETS[name] == "NPU"
        triple = f"{platform.machine() or 'unknown'}-openvino"
        return TargetDescription(name, triple, "npu" if npu else "host", symbols=not npu)

    def refused(self, graph: Graph, target: TargetDescription) -> Mapping[Node, str]:
        """Return the nodes that no row of the opset table takes, with the reason.

        A target without symbols sees none: the runtime binds them before it asks.
        """
        reasons = ((node, refusal(node)) for node in graph.nodes)
        return {node: reason for node, reason in reasons if reason is not None}

    def group_info(self, group: Node, target: TargetDescription) -> GroupInfo:
        """Return nothing: OpenVINO plans its own memory and layouts."""
        return GroupInfo()

    def source_hash(self) -> str:
        """Return a digest of this backend's sources and of the version of OpenVINO."""
        return _source_hash(sdk.installed_version())

    def allocator(self, device: Device) -> HostAllocator:
        """Return the allocator of host memory."""
        return HostAllocator()

    def stream(self, device: Device) -> HostStream:
        """Return a stream; work is done when the call that queues it returns."""
        return HostStream(device)

    def upload(self, array: Any, device: Device, stream: Any = None) -> np.ndarray:
        """Return the array: OpenVINO reads host memory."""
        return np.asarray(array)

    def download(self, storage: Any, stream: Any = None) -> np.ndarray:
        """Return a copy of a storage as an array."""
        return np.array(storage)

    def copy(self, storage: Any, device: Device, stream: Any = None) -> np.ndarray:
        """Return a copy of a storage."""
        return np.array(storage)

    def compile(
        self,
        piece: Piece,
        target: TargetDescription,
        options: Mapping[str, Any],
        store: ArtifactStore,
    ) -> NpuExecutable:
        """Turn a piece into an executable.

        Raises:
            DeviceError: the openvino wheel is missing, or OpenVINO rejects the model.
            InvalidArgumentError: an option has a wrong value.
            UnimplementedError: carrying a node that has no row in the opset table.
        """
        device = TARGETS[target.name]
        properties = _properties(device, options)
        built = build_model(piece.graph)
        compiled = _compiled(built.model, device, properties)
        artifact = Artifact(device, properties, built.symbols, built.checks)
        inspection = Inspection(
            lambda: {"openvino": model_text(built.model)},
            lambda: _profiled(built, device, properties),
        )
        return NpuExecutable(compiled, artifact, piece.signature, inspection)

    def deserialize(self, data: bytes, signature: Signature, store: ArtifactStore) -> NpuExecutable:
        """Rebuild an executable from the bytes of `serialize`.

        Raises:
            InvalidArgumentError: the bytes are not such an executable, or OpenVINO rejects them.
        """
        artifact, blob = Artifact.from_bytes(data)
        try:
            # Without the same properties the CPU would compute in bfloat16 where it can.
            properties = _here(artifact.device, artifact.config)
            compiled = sdk.core().import_model(io.BytesIO(blob), artifact.device, properties)
        except RuntimeError as error:
            raise InvalidArgumentError(f"OpenVINO rejects the artefact: {error}") from error
        return NpuExecutable(compiled, artifact, signature)

    def doctor(self) -> Mapping[str, str]:
        """Return the version of OpenVINO, its devices, and which of them is used."""
        version = sdk.installed_version()
        if version == "missing":
            return {"openvino": "missing", "problem": sdk.MISSING}
        devices = sdk.device_names()
        used = TARGETS[_preferred_target()]
        facts = {"openvino": version, "devices": " ".join(devices), "device used": used}
        facts["name"] = str(sdk.core().get_property(used, "FULL_DEVICE_NAME"))
        if used != "NPU":
            facts["npu"] = "none: OpenVINO sees no NPU, so its CPU device runs the models"
        return facts


def _preferred_target() -> str:
    """The NPU's where there is one; the CPU's too where the wheel is missing: compile says so."""
    missing = sdk.installed_version() == "missing"
    return "openvino-npu" if not missing and "NPU" in sdk.device_names() else "openvino-cpu"


def _properties(device: str, options: Mapping[str, Any]) -> dict[str, str]:
    """Return the properties to compile and to import with."""
    precision = options.get("inference_precision", "f32")
    if precision not in PRECISIONS:
        raise InvalidArgumentError(
            f"option inference_precision must be one of {', '.join(PRECISIONS)}, received "
            f"{precision!r}"
        )
    properties = {"PERFORMANCE_HINT": "LATENCY"}
    if device == "CPU":
        properties["INFERENCE_PRECISION_HINT"] = precision
    return properties


def _here(device: str, properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties with those of this process, which no artefact keeps."""
    threads = config.get("FRAME_NUM_THREADS") or config.get("OMP_NUM_THREADS")
    limit = {"INFERENCE_NUM_THREADS": str(threads)} if threads and device == "CPU" else {}
    return {**properties, **limit}


def _compiled(model: Any, device: str, properties: Mapping[str, str]) -> Any:
    try:
        return sdk.core().compile_model(model, device, _here(device, properties))
    except RuntimeError as error:
        raise DeviceError(f"OpenVINO could not compile the model for {device}: {error}") from error


def _profiled(
    built: BuiltModel, device: str, properties: Mapping[str, str]
) -> tuple[Any, Mapping[str, int]]:
    return _compiled(built.model, device, {**properties, "PERF_COUNT": "YES"}), built.names


def model_text(model: Any) -> str:
    """Return a model as text: name, operation, operands and result of one node a line."""
    lines = []
    for node in model.get_ordered_ops():
        operands = ", ".join(
            source.get_node().get_friendly_name()
            for source in (entry.get_source_output() for entry in node.inputs())
        )
        types = ", ".join(
            f"{output.get_element_type().to_string()}{output.get_partial_shape()}"
            for output in node.outputs()
        )
        lines.append(f"{node.get_friendly_name()} = {node.get_type_name()}({operands}) -> {types}")
    return "\n".join(lines) + "\n"


@cache
def _source_hash(version: str) -> str:
    digest = hashlib.sha256(version.encode())
    root = Path(__file__).resolve().parent
    for path in sorted(root.glob("*.py")):
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()
