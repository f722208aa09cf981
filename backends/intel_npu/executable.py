"""A compiled model of OpenVINO as an executable: host arrays in, host arrays out."""

from __future__ import annotations

import contextlib
import io
import json
import struct
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from frame.backends.intel_npu import sdk
from frame.backends.intel_npu.model import TYPE_NAMES, Check
from frame.core import forks
from frame.core.dataclass import dataclass
from frame.core.errors import DeviceError, InternalError, InvalidArgumentError
from frame.core.shapes import bind_shape, parse_dim
from frame.hal.interfaces import KernelTime, Port, Signature
from frame.hal.ports import bind_inputs, copy_results
from frame.ir.constraints import check_constraints

_MAGIC = b"FRNPU1\0\0"
_FREE_REQUESTS = 4  # idle infer requests that an executable keeps
_RAW = {"bfloat16": np.uint16}  # what numpy arrays of a dtype without a numpy type are viewed as


@dataclass(frozen=True, slots=True)
class Artifact:
    """What a run needs beside the compiled model, and what the bytes of a model begin with.

    `device` is OpenVINO's name, `config` the properties that it was compiled with (they must be
    given again when it is imported), `symbols` its hidden inputs.
    """

    device: str
    config: Mapping[str, str]
    symbols: tuple[str, ...]
    checks: tuple[Check, ...]

    def to_bytes(self, blob: bytes) -> bytes:
        """Return the artefact and the exported model as bytes."""
        header = {
            "device": self.device,
            "config": dict(self.config),
            "symbols": list(self.symbols),
            "checks": [[c.op, c.where, str(c.limit), c.source, c.before] for c in self.checks],
        }
        text = json.dumps(header, sort_keys=True).encode()
        return _MAGIC + struct.pack("<Q", len(text)) + text + blob

    @staticmethod
    def from_bytes(data: bytes) -> tuple[Artifact, bytes]:
        """Return what `to_bytes` was given; raise InvalidArgumentError for other bytes."""
        start = len(_MAGIC) + 8
        if data[: len(_MAGIC)] != _MAGIC or len(data) < start:
            raise InvalidArgumentError("expected an artefact of intel_npu, received other bytes")
        (length,) = struct.unpack("<Q", data[len(_MAGIC) : start])
        try:
            header = json.loads(data[start : start + length])
            checks = tuple(
                Check(str(op), str(where), parse_dim(limit), int(source), bool(before))
                for op, where, limit, source, before in header["checks"]
            )
            config = {str(key): str(value) for key, value in header["config"].items()}
            symbols = tuple(map(str, header["symbols"]))
            made = Artifact(str(header["device"]), config, symbols, checks)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InvalidArgumentError(f"damaged artefact of intel_npu: {error}") from error
        return made, data[start + length :]


@dataclass(frozen=True, slots=True, eq=False)
class Inspection:
    """How an executable made from a graph shows its source and profile."""

    source: Callable[[], Mapping[str, str]]
    profiled: Callable[[], tuple[Any, Mapping[str, int]]]


class NpuExecutable:
    """A compiled piece. Runs may come from several threads; those that update state take turns."""

    def __init__(
        self,
        compiled: Any,
        artifact: Artifact,
        signature: Signature,
        inspection: Inspection | None = None,
    ) -> None:
        self.signature = signature
        self.artifact = artifact
        self._compiled = compiled
        self._inspection = inspection
        self._requests: deque[Any] = deque(maxlen=_FREE_REQUESTS)
        self._lock = forks.lock()

    def run(
        self,
        inputs: Sequence[Any],
        outputs: Sequence[Any] | None = None,
        stream: Any = None,
    ) -> list[np.ndarray]:
        """Run on host arrays and return the outputs; updated inputs change in place, last.

        Args:
            inputs: one array per input of the signature, of any strides and byte order.
            outputs: arrays to write into instead of fresh ones.
            stream: unused; the results are there when the call returns.

        Raises:
            InvalidArgumentError: an array does not fit the signature, or an index in the data is
                out of range (nothing was changed then).
            DeviceError: OpenVINO could not run the model.
        """
        arrays, bindings = _bound(self.signature, inputs)
        check_constraints(self.signature.constraints, bindings)
        _require_elements(bindings)
        with self._lock if self.signature.updates else contextlib.nullcontext():
            results = self._infer(arrays, bindings)
            count = len(self.signature.outputs)
            for position, value in zip(self.signature.updates, results[count:], strict=False):
                np.copyto(inputs[position], value)
        if outputs is None:
            return results[:count]
        copy_results(self.signature, results[:count], outputs)
        return list(outputs)

    def _infer(self, arrays: list[np.ndarray], bindings: Mapping[str, int]) -> list[np.ndarray]:
        self._check(True, arrays, bindings)
        request = self._request()
        _feed(request, arrays, self.signature.inputs)
        for position, name in enumerate(self.artifact.symbols, len(arrays)):
            value = np.array([bindings[name]], np.int64)
            request.set_input_tensor(position, sdk.openvino().Tensor(value))
        _wait(request)
        results = self._results(request)
        self._requests.append(request)
        self._check(False, results, bindings)
        return results

    def _request(self) -> Any:
        try:
            return self._requests.pop()
        except IndexError:
            return self._compiled.create_infer_request()

    def _results(self, request: Any) -> list[np.ndarray]:
        """Return copies of all outputs: the request's own memory is used again."""
        signature = self.signature
        dtypes = [port.type.dtype for port in signature.outputs]
        dtypes += [signature.inputs[position].type.dtype for position in signature.updates]
        found = []
        for position in range(len(self._compiled.outputs)):
            data = request.get_output_tensor(position).data
            if position < len(dtypes) and dtypes[position].name in _RAW:
                data = data.view(dtypes[position].numpy)
            found.append(np.array(data))
        return found

    def _check(
        self, before: bool, arrays: Sequence[np.ndarray], bindings: Mapping[str, int]
    ) -> None:
        """Check the indices among the inputs (before) or among the outputs."""
        for check in self.artifact.checks:
            if check.before != before:
                continue
            (limit,) = bind_shape((check.limit,), bindings)
            flat = arrays[check.source].reshape(-1)
            wrong = np.flatnonzero((flat < 0) | (flat >= limit))
            if wrong.size:
                raise InvalidArgumentError(check.message(int(wrong[0]), int(flat[wrong[0]])))

    def profile(self, inputs: Sequence[Any]) -> list[KernelTime]:
        """Run once with OpenVINO's counters and return the time of each layer that ran.

        The model is compiled again for it. OpenVINO fuses: a layer has the name of its last node.
        """
        compiled, names = self._inspect().profiled()
        arrays, bindings = _bound(self.signature, inputs)
        counted = NpuExecutable(compiled, self.artifact, self.signature)
        request = compiled.create_infer_request()
        counted._requests.append(request)
        counted._infer(arrays, bindings)
        return [
            KernelTime(f"{row.node_name} {row.exec_type}", _origin(row, names), _seconds(row))
            for row in request.profiling_info
            if _seconds(row) > 0
        ]

    def source(self) -> Mapping[str, str]:
        """Return the model as text under `openvino`: one line an operation."""
        return self._inspect().source()

    def _inspect(self) -> Inspection:
        if self._inspection is None:
            raise InternalError("an executable from the cache has neither source nor profile")
        return self._inspection

    def serialize(self) -> bytes:
        """Return bytes from which `IntelNpuBackend.deserialize` makes the executable again."""
        exported = self._compiled.export_model()
        blob = exported.getvalue() if isinstance(exported, io.BytesIO) else bytes(exported)
        return self.artifact.to_bytes(blob)


def _require_elements(bindings: Mapping[str, int]) -> None:
    """Refuse empty batches: on some ops they end the process, on others give an error."""
    for name, value in bindings.items():
        if value == 0:
            raise InvalidArgumentError(
                f"OpenVINO does not run tensors without elements, received {name} = 0; pass at "
                "least one, or compile for the backend cpu"
            )


def _origin(row: Any, names: Mapping[str, int]) -> tuple[int, ...]:
    origin = names.get(row.node_name)
    return () if origin is None else (origin,)


def _seconds(row: Any) -> float:
    return float(row.real_time.total_seconds())


def _feed(request: Any, arrays: Sequence[np.ndarray], ports: Sequence[Port]) -> None:
    openvino = sdk.openvino()
    for position, (array, port) in enumerate(zip(arrays, ports, strict=True)):
        name = port.type.dtype.name
        if name in _RAW:
            type_ = getattr(openvino.Type, TYPE_NAMES[name])
            tensor = openvino.Tensor(array.view(_RAW[name]), list(array.shape), type_)
        else:
            tensor = openvino.Tensor(array, shared_memory=array.size > 0)
        request.set_input_tensor(position, tensor)


def _wait(request: Any) -> None:
    try:
        request.infer()
    except RuntimeError as error:
        raise DeviceError(f"OpenVINO could not run the model: {error}") from error


def _bound(signature: Signature, inputs: Sequence[Any]) -> tuple[list[np.ndarray], dict[str, int]]:
    """Return the inputs row-major and native, and the symbols; raise as `bind_inputs`."""
    arrays, bindings = bind_inputs(signature, inputs)
    return [np.ascontiguousarray(each).reshape(each.shape) for each in arrays], bindings
