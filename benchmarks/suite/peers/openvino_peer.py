"""OpenVINO: the ONNX model of a plan on the device CPU in float32, one infer request reused."""

from __future__ import annotations

import numpy as np
import openvino

from benchmarks.suite.case import Instance
from benchmarks.suite.peers.base import NotSupportedError, Prepared, how
from benchmarks.suite.peers.onnx_model import CALLS, onnx_model, onnx_plan


def prepare(instance: Instance, threads: int) -> Prepared:
    """Load a case for the least latency."""
    plan = onnx_plan(instance)
    core = openvino.Core()
    settings = {
        "INFERENCE_PRECISION_HINT": "f32",
        "INFERENCE_NUM_THREADS": threads,
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": 1,
    }
    data = onnx_model(instance, plan)
    try:
        compiled = core.compile_model(core.read_model(data), "CPU", settings)
    except RuntimeError as error:
        raise NotSupportedError(f"openvino refuses the model: {_reason(error)}") from error
    request = compiled.create_infer_request()
    tensors = [openvino.Tensor(array, shared_memory=True) for array in instance.arrays]
    for position, tensor in enumerate(tensors):
        request.set_input_tensor(position, tensor)

    held = (data, tensors)  # the request reads this memory and does not keep it

    def call(held: object = held) -> None:
        request.infer(share_outputs=True)

    def read() -> list[np.ndarray]:
        call()
        return [
            np.array(request.get_output_tensor(position).data)
            for position in range(len(plan.outputs))
        ]

    return Prepared(call, read, how("one infer request, float32, latency hint", plan, CALLS))


def _reason(error: RuntimeError) -> str:
    """Return the lines of a message that name what is missing."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return "; ".join(lines[2:])[:160] or str(error)[:160]
