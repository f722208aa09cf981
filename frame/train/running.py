"""The run of a task: epochs of compiled steps, validation, checkpoints, and going on from one."""

from __future__ import annotations

import hashlib
import itertools
import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from frame.compiler.optimizers.step import AVERAGE
from frame.core.arguments import LARGEST
from frame.core.errors import InvalidArgumentError
from frame.core.logs import Logger
from frame.ir.hashing import structural_hash
from frame.runtime.model import TRAIN_STEP, CompiledModel
from frame.train.checkpoints import CheckpointFolder
from frame.train.evaluation import means_over
from frame.train.metrics import named_metrics
from frame.train.progress import Advance, progress_bar
from frame.train.records import EarlyStop, EpochRecord, History, Watch, require_value
from frame.train.steps import Steps

if TYPE_CHECKING:
    from frame.train.task import DeepLearningTask

_LOG = Logger("frame.train")
AVERAGED = "average_"
"""What the names of validation values of the averaged weights begin with."""


class TrainingRun:
    """One run of a task, as callbacks see it.

    Attributes:
        task: the task.
        model: the compiled model.
        step, total: how many steps are done, and how many there will be.
        epoch: the number of the epoch, from 0.
        loss, rate: of the last step.
        records: the epochs so far.
    """

    def __init__(self, task: DeepLearningTask, model: CompiledModel) -> None:
        feed = task.checked_feed()
        self.task, self.model = task, model
        self.records: list[EpochRecord] = []
        self.epoch = 0
        self._loader = feed.train_loader(task.seed_value)
        self._validation = feed.validation_loader()
        self._metrics = named_metrics(task.metric_names)
        self._seconds = 0.0
        self._watch = Watch(task.stopping or EarlyStop(self._default_value(), patience=LARGEST))
        self._best_step: int | None = None
        self._stopped = ""
        rule = task.resolutions
        self._variants = {} if rule is None else {rule.last: model}
        self._averages = [n for n in model.store if n.startswith(f"{AVERAGE}.")]
        self._folder = None if task.saving is None else CheckpointFolder(task.saving)
        self._watched_value_exists()
        check_snapshots(self.task)
        if rule is not None:
            rule.warn_unreached(task.epochs)
        schedule = task.checked_scheduler().schedule(len(self._loader))
        total = task.epochs * len(self._loader)
        self._steps = Steps(model, schedule, total, self._metrics, self._left)

    @property
    def step(self) -> int:
        """How many steps are done."""
        return self._steps.step

    @property
    def total(self) -> int:
        """How many steps there will be."""
        return self._steps.total

    @property
    def loss(self) -> float:
        """The loss of the last step."""
        return self._steps.loss

    @property
    def rate(self) -> float:
        """The learning rate of the last step."""
        return self._steps.rate

    @property
    def _batch(self) -> int:
        """How many steps of this epoch are done."""
        return self.step - self.epoch * len(self._loader)

    @property
    def _compares(self) -> bool:
        """Whether the averaged weights are others than those that are validated."""
        return bool(self._averages) and not self.task.switches

    def _default_value(self) -> str:
        if self._validation is None:
            return "loss"
        return "val_top1" if "top1" in self._metrics else "val_loss"

    def stop(self, reason: str) -> None:
        """End the training after this epoch."""
        self._stopped = reason

    def value_names(self) -> list[str]:
        """Return the names of the values that a record can have."""
        own = ["loss", *self._metrics]
        if self._validation is None:
            return own
        both = [*own, *(f"{AVERAGED}{name}" for name in own)] if self._compares else own
        return [*own, *(f"val_{name}" for name in both)]

    # --- the loop ---------------------------------------------------------------------------------

    def run(self, resume: bool) -> History:
        """Run what is left, from the newest checkpoint on if there is one."""
        if resume:
            self._resume()
        for callback in self.task.callbacks:
            callback.on_start(self)
        with progress_bar(self.task.bar, self.total, self.step) as bar:
            while self.epoch < self.task.epochs and not self._stopped:
                self._one_epoch(bar)
        return self._finish()

    def _watched_value_exists(self) -> None:
        for value in (self._watch.rule.value, *(name for name, _ in self.task.thresholds)):
            require_value(value, self.value_names())

    def _one_epoch(self, bar: Advance) -> None:
        title = f"epoch {self.epoch + 1}/{self.task.epochs}"
        self._loader.set_epoch(self.epoch, self._batch)
        self._steps.model = self._trained()
        start = time.perf_counter()
        for loss in self._steps.over(self._loader):
            bar(f"{title}  loss {loss:.4f}  rate {self.rate:.3g}")
            for callback in self.task.callbacks:
                callback.on_step(self)
            if self._due_within_the_epoch():
                self._checkpoint(time.perf_counter() - start)
        self._end_epoch(self._seconds + time.perf_counter() - start)

    def _trained(self) -> CompiledModel:
        """Return the variant of the model that trains this epoch."""
        rule = self.task.resolutions
        if rule is None:
            return self.model
        look = rule.at(self.epoch)
        if look not in self._variants:
            self._variants[look] = self.task.variant(self.model, look)
        return self._variants[look]

    def _end_epoch(self, seconds: float) -> None:
        if self.task.switches:
            self.model.store.write(self._averaged())
        record = self._steps.record(self.epoch, self._batch, seconds, self._validated())
        if self.task.resolutions is not None:
            record = replace(record, resolution=self.task.resolutions.at(self.epoch).text())
        self.records.append(record)
        self.epoch, self._seconds = self.epoch + 1, 0.0
        better = self._watch.better(record)
        if better:
            self._keep_best()
        self._keep_snapshots()
        self._stopped = self._stopped or self._reason(record)
        for callback in self.task.callbacks:
            callback.on_epoch(self, record)
        if self._due_after_the_epoch(better):
            self._checkpoint(0.0)

    def _reason(self, record: EpochRecord) -> str:
        """Return why to stop after an epoch; empty to go on."""
        values = record.values()
        for name, threshold in self.task.thresholds:
            falls = not EarlyStop(name).improved(1.0, 0.0)
            value = values.get(name, math.nan)
            if value <= threshold if falls else value >= threshold:
                return f"{name} has reached {value:.6g} ({threshold:g} was asked for)"
        return self._watch.reason(record)

    def _finish(self) -> History:
        rule = self._watch.rule
        if self._stopped and self.task.resolutions is not None:
            self.task.resolutions.warn_unreached(self.epoch)
        if rule.restore and self._watch.parameters:
            self.model.load_params(self._watch.parameters)
        elif self._averages and self.task.use_average and not self.task.switches:
            self.model.store.write(self._averaged())
        history = History(tuple(self.records), self._stopped, self._best_epoch(), self.model)
        for callback in self.task.callbacks:
            callback.on_end(self, history)
        return history

    def _best_epoch(self) -> int | None:
        return None if self._watch.best is None else self._watch.epoch

    # --- validation and the best epoch ------------------------------------------------------------

    def _validated(self) -> dict[str, float]:
        number = self.epoch + 1
        interval, offset = self.task.validation_rhythm
        due = number >= offset and (number - offset) % interval == 0
        if self._validation is None or not (due or number == self.task.epochs):
            return {}
        found = self._validate()
        if self._compares:
            with self._averaged_weights():
                found |= {f"{AVERAGED}{name}": value for name, value in self._validate().items()}
        return found

    def _validate(self) -> dict[str, float]:
        if self._validation is None:
            return {}
        return means_over(self.model, self._validation, self._metrics, True).with_loss()

    def _averaged(self) -> dict[str, np.ndarray]:
        """Return the averaged weights under the names of the weights."""
        store = self.model.store
        return {name.removeprefix(f"{AVERAGE}."): store[name] for name in self._averages}

    @contextmanager
    def _averaged_weights(self) -> Iterator[None]:
        """Let the model have its averaged weights for a while."""
        store, averaged = self.model.store, self._averaged()
        own = {name: store[name] for name in averaged}
        store.write(averaged)
        try:
            yield
        finally:
            store.write(own)

    def _keep_best(self) -> None:
        self._best_step = self.step
        wanted = f"val_{AVERAGED}"
        uses_average = self._watch.rule.value.startswith(wanted)
        parameters = dict(self.model.params)
        if uses_average:
            parameters |= self._averaged()
        if self._watch.rule.restore:
            self._watch.parameters = parameters
        if self.task.best_path is not None:
            save_model(self.model, parameters, self.task.best_path)

    def _keep_snapshots(self) -> None:
        """Write the models that are wanted after the epoch that has just ended."""
        for epoch, path in self.task.snapshots:
            if epoch == self.epoch:
                save_model(self.model, dict(self.model.params), path)

    # --- checkpoints ------------------------------------------------------------------------------

    def _due_within_the_epoch(self) -> bool:
        every = None if self.task.saving is None else self.task.saving.every_steps
        inside = self._batch < len(self._loader)
        return every is not None and inside and self.step % every == 0

    def _due_after_the_epoch(self, better: bool) -> bool:
        if self.task.saving is None:
            return False
        done = self.epoch == self.task.epochs or bool(self._stopped)
        return done or better or self.epoch % self.task.saving.every_epochs == 0

    def _checkpoint(self, seconds: float) -> None:
        if self._folder is None:
            return
        store = self.model.store
        arrays = {name: store[name] for name in store}
        for name, array in self._watch.parameters.items():
            arrays[f"{_BEST}{name}"] = array
        self._folder.write(self.step, arrays, self._state(seconds), self._best_step)

    def _left(self) -> str:
        """Return from where a run that failed can go on; empty where there is no such place."""
        steps = () if self._folder is None else self._folder.steps()
        before = [step for step in steps if step < self.step]
        return f"the newest checkpoint before it is that of step {before[-1]}" if before else ""

    def _state(self, seconds: float) -> dict[str, Any]:
        return {
            "epoch": self.epoch,
            "counter": [int(word) for word in self.model.counter.words],
            "means": self._steps.means.to_data(),
            "seconds": self._seconds + seconds,
            "rate": self.rate,
            "best": [self._watch.best, self._watch.epoch, self._best_step],
            "stopped": self._stopped,
            "records": [record.state() for record in self.records],
            "task": self._identity(),
        }

    def _identity(self) -> dict[str, str]:
        """Return what must be the same for a checkpoint to be gone on from."""
        graph = self.model.entry(TRAIN_STEP).declared.graph
        rule = self.task.rule()
        return {
            "model and loss": hashlib.sha256(str(structural_hash(graph)).encode()).hexdigest(),
            "optimizer": self.task.recipe().text(),
            "data": self.task.checked_feed().text(),
            "seed": str(self.task.seed_value),
            **({"switch": "after each epoch"} if self.task.switches else {}),
            **({} if rule is None else {"resolution": rule.text()}),
        }

    def _resume(self) -> None:
        found = None if self._folder is None else self._folder.latest()
        if found is None:
            return
        state = found.state
        self._check_identity(state["task"])
        best = {n[len(_BEST) :]: a for n, a in found.arrays.items() if n.startswith(_BEST)}
        self.model.store.write({n: a for n, a in found.arrays.items() if not n.startswith(_BEST)})
        self.model.counter.words[:] = state["counter"]
        self.epoch, self._seconds = state["epoch"], state["seconds"]
        self._steps.step, self._steps.rate = found.step, state["rate"]
        self._steps.means.restore(state["means"])
        self._watch.best, self._watch.epoch, self._best_step = state["best"]
        self._watch.parameters = best
        self._stopped = state["stopped"] if self.epoch < self.task.epochs else ""
        self.records = [EpochRecord(**record) for record in state["records"]]
        _LOG.info("going on from the checkpoint of step %d", found.step)

    def _check_identity(self, saved: Mapping[str, str]) -> None:
        own = self._identity()
        for name in itertools.chain(own, saved):
            if saved.get(name) != own.get(name):
                raise InvalidArgumentError(
                    f"the checkpoints in {self.task.saving and self.task.saving.folder} are of "
                    f"another task: their {name} is {saved.get(name)}, expected {own.get(name)}; "
                    "choose another folder, or run(resume=False)"
                )


_BEST = "best:"  # no path of a parameter has a colon


def save_model(model: CompiledModel, parameters: Mapping[str, np.ndarray], path: str) -> None:
    """Write the parameters to .safetensors, .npz or .onnx, or the whole model to `.frame`."""
    from frame.interop.weights import save_weights

    if not path.endswith(".frame"):
        save_weights(path, parameters)
        return
    own = dict(model.params)
    model.load_params(parameters)
    try:
        model.save(path)
    finally:
        model.load_params(own)


def check_snapshots(task: DeepLearningTask) -> None:
    """Raise InvalidArgumentError where a model is wanted after an epoch that does not come."""
    late = [epoch for epoch, _ in task.snapshots if epoch > task.epochs]
    if late:
        raise InvalidArgumentError(
            f"save_model_at_epoch: expected an epoch from 1 to {task.epochs}, the total_epochs, "
            f"received {late[0]}"
        )
