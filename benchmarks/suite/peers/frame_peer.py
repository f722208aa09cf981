"""frame: the declared module, compiled."""

from __future__ import annotations

import numpy as np

import frame.train
from benchmarks.suite.case import LEARNING_RATE, MOMENTUM, Instance
from benchmarks.suite.peers.base import Prepared, losses
from frame import nn


def prepare(instance: Instance, threads: int) -> Prepared:
    """Compile a case; the size of the thread pool comes from the environment."""
    return _training(instance) if instance.training else _inference(instance)


def compiled(instance: Instance) -> frame.runtime.model.CompiledModel:
    """Return the compiled model of a case."""
    if not instance.training:
        return frame.compile(instance.declaration.module, instance.specs, params=instance.values)
    target = instance.declaration.target
    return frame.compile(
        instance.declaration.module,
        instance.specs,
        params=instance.values,
        loss=nn.CrossEntropyLoss() if instance.classes else nn.MseLoss(),
        targets=[target.spec] if target else [],
        optimizer=frame.train.SGD(momentum=MOMENTUM),
    )


def _inference(instance: Instance) -> Prepared:
    model = compiled(instance)
    arrays = instance.arrays

    def outputs() -> list[np.ndarray]:
        result = model(*arrays)
        return [np.array(x) for x in (result if isinstance(result, tuple) else (result,))]

    def kernels() -> float:
        return sum(row.seconds for row in model.entry("infer").profile(*arrays))

    return Prepared(lambda: model(*arrays), outputs, _host(model), kernels)


def _host(model: frame.runtime.model.CompiledModel) -> str:
    steps = model.host_steps
    return "compiled" + (f"; in numpy: {', '.join(steps)}" if steps else "")


def _training(instance: Instance) -> Prepared:
    model = compiled(instance)
    rate = np.float32(LEARNING_RATE)
    inputs = (*instance.arrays, instance.target)

    def step() -> np.ndarray:
        return model.train_step(*inputs, learning_rate=rate)[0]

    return Prepared(step, lambda: losses(step), "forward, backward and update in one executable")
