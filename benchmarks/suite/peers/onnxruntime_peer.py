"""ONNX Runtime: the ONNX model of a plan, inputs and outputs bound once."""

from __future__ import annotations

import numpy as np
import onnxruntime

from benchmarks.suite.case import Instance
from benchmarks.suite.peers.base import Prepared, how
from benchmarks.suite.peers.onnx_model import CALLS, onnx_model, onnx_plan


def prepare(instance: Instance, threads: int) -> Prepared:
    """Load a case with all graph optimisations; batch norm is folded by the runtime itself."""
    plan = onnx_plan(instance)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        onnx_model(instance, plan), options, providers=["CPUExecutionProvider"]
    )
    binding = session.io_binding()
    inputs = [onnxruntime.OrtValue.ortvalue_from_numpy(array) for array in instance.arrays]
    for port, value in zip(session.get_inputs(), inputs, strict=True):
        binding.bind_ortvalue_input(port.name, value)
    results = [np.zeros(plan.shapes[slot], np.float32) for slot in plan.outputs]
    outputs = [onnxruntime.OrtValue.ortvalue_from_numpy(array) for array in results]
    for output, value in zip(session.get_outputs(), outputs, strict=True):
        binding.bind_ortvalue_output(output.name, value)

    def call() -> None:
        session.run_with_iobinding(binding)

    def read() -> list[np.ndarray]:
        call()
        return [np.array(value.numpy()) for value in outputs]

    return Prepared(call, read, how("IO binding, outputs reused", plan, CALLS))
