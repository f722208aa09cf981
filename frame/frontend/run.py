"""Training a plan: compile, step over the data, report."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from frame.core.dataclass import dataclass
from frame.core.errors import InvalidArgumentError
from frame.frontend.plan import BATCH, Plan, rows_of

if TYPE_CHECKING:
    from frame.data import DataLoader, TensorDataset
    from frame.runtime.model import CompiledModel
    from frame.train.steps import Steps

Report = Callable[[int, float], Any]


@dataclass(frozen=True, slots=True, eq=False)
class Result:
    """What a training run left.

    Attributes:
        model: the trained model.
        losses: the loss of every step, before its update.
        predictions: the output of the trained model for the first batch of the data, in order.
        validation: the loss over the rows that were kept back; None where there are none.
    """

    model: CompiledModel
    losses: tuple[float, ...]
    predictions: np.ndarray
    validation: float | None = None

    @property
    def final_loss(self) -> float:
        """The loss of the last step."""
        return self.losses[-1]


def compile_plan(
    plan: Plan,
    backend: str | None = None,
    train: bool = True,
    batch: int | None = None,
    **options: Any,
) -> CompiledModel:
    """Return the compiled model with its initial parameters.

    Args:
        plan: the checked spec.
        backend: where to run, in place of what the spec says.
        train: whether to compile the training step, or else inference.
        batch: the rows of every step, for which the training step alone is compiled.
        options: further arguments of `frame.compile`: `target`, `params`, `seed`.

    Raises:
        InvalidArgumentError: the model can't be built.
    """
    import frame

    sizes = {BATCH: batch} if train and batch and plan.has_symbols else {}
    model: CompiledModel = frame.compile(
        plan.trained(),
        dict(plan.inputs),
        loss=plan.loss if train else None,
        targets=[plan.target] if train else (),
        optimizer=plan.optimizer if train else None,
        backend=backend or plan.backend,
        sizes=sizes,
        **{"seed": plan.training.seed, "params": plan.values() or None} | options,
    )
    model.name = plan.name
    return model


def train(
    plan: Plan,
    *,
    backend: str | None = None,
    report: Report | None = None,
    progress: bool | None = False,
) -> Result:
    """Train a plan and return what it left.

    Args:
        plan: the checked spec.
        backend: where to train, in place of what the spec says.
        report: called with (step, loss) after the steps that `log_every` names and the last.
        progress: whether to show a bar on standard error; None shows it on a terminal, where no
            step is reported before the last.

    Raises:
        InvalidArgumentError: the data does not fit, or the loss is not finite.
    """
    from frame.data import TensorDataset

    columns = plan.columns()
    rows_of(plan, columns)
    rows, kept = kept_apart(plan, TensorDataset(columns))
    batches = Batches(plan, rows)
    model = compile_plan(plan, backend, batch=batches.size if batches.are_even else None)
    losses = _losses(batches, model, report, progress)
    validation = None if kept is None else _validated(model, kept, batches.size)
    first = [column[: batches.size] for column in columns[:-1]]
    result = Result(model, tuple(losses), np.array(model(*first)), validation)
    if plan.save:
        model.save(plan.save)
    return result


def _losses(
    batches: Batches, model: CompiledModel, report: Report | None, progress: bool | None
) -> list[float]:
    """Run all steps; return their losses."""
    from frame.train.progress import progress_bar
    from frame.train.steps import Steps

    plan, last = batches.plan, batches.steps - 1
    # A bar and lines between its redraws would spoil each other.
    wanted = False if progress is None and plan.training.log_every else progress
    losses: list[float] = []
    steps = Steps(model, batches.schedule, batches.steps)
    with progress_bar(wanted, batches.steps) as bar:
        for step, loss in enumerate(steps.over(_at_sizes(batches, steps))):
            losses.append(loss)
            bar(f"loss {loss:.4g}")
            if report is not None and step != last and is_logged(plan, step, batches.steps):
                report(step, loss)
    if report is not None:
        report(last, losses[-1])
    return losses


def _at_sizes(batches: Batches, steps: Steps) -> Iterator[tuple[np.ndarray, ...]]:
    """Yield the batches, each when the step of its resolution stands ready."""
    plan, first, count = batches.plan, steps.model, batches.steps_per_epoch
    rule = plan.training.resolution
    sizes = {BATCH: batches.size} if batches.are_even and plan.has_symbols else {}
    made = {} if rule is None else {rule.last: first}
    if rule is not None:
        rule.warn_unreached(-(-batches.steps // count))
    for step, batch in enumerate(batches):
        if rule is not None and step % count == 0:
            look = rule.at(step // count)
            if look not in made:
                module = plan.trained(step // count)
                made[look] = first.variant(dict(plan.inputs), [plan.target], sizes, module)
            steps.model = made[look]
        yield batch


def check_data(plan: Plan) -> dict[str, Any]:
    """Read the data of a plan and build its graphs, but compile nothing; return what was found.

    Raises:
        InvalidArgumentError: the data or the model does not fit.
    """
    from frame.data import TensorDataset
    from frame.runtime.training import graph_with_loss

    columns = plan.columns()
    rows = rows_of(plan, columns)
    steps = Batches(plan, kept_apart(plan, TensorDataset(columns))[0]).steps
    graph = graph_with_loss(plan.trained(), plan.loss, plan.inputs, [plan.target], "train")
    parameters = plan.module.count_parameters()
    return {"rows": rows, "steps": steps, "parameters": parameters, "nodes": len(graph.nodes)}


def is_logged(plan: Plan, step: int, steps: int) -> bool:
    """Whether a step is reported: every `log_every`-th one, and the last."""
    every = plan.training.log_every
    return step == steps - 1 or (every > 0 and step % every == 0)


def kept_apart(plan: Plan, rows: TensorDataset) -> tuple[TensorDataset, TensorDataset | None]:
    """Return the rows to train on, and those kept for validation or None.

    Raises:
        InvalidArgumentError: one of the two would be empty.
    """
    share = plan.training.validation
    if not share:
        return rows, None
    try:
        kept, rest = rows.split(share, plan.training.seed)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"training.validation_split: {error}") from None
    return rest, kept


class Batches:
    """The batches of all steps: `steps` of them, over as many epochs as they take."""

    def __init__(self, plan: Plan, rows: TensorDataset) -> None:
        training = plan.training
        self.size = training.batch_size or len(rows)
        if self.size > len(rows):
            raise InvalidArgumentError(
                f"training.batch_size: expected at most the rows to train on, {len(rows)}, "
                f"received {self.size}"
            )
        self.plan, self.rows, self.training = plan, rows, training
        self.steps_per_epoch = len(self._loader())
        self.steps = training.steps or self.steps_per_epoch * (training.epochs or 1)
        self.schedule = plan.schedule(self.steps_per_epoch)

    @property
    def are_even(self) -> bool:
        """Whether all batches have one size."""
        return self.training.drop_last or len(self.rows) % self.size == 0

    def _loader(self) -> DataLoader:
        from frame.data import DataLoader

        training = self.training
        return DataLoader(self.rows, self.size, training.shuffle, training.seed, training.drop_last)

    def row_numbers(self) -> Iterator[np.ndarray]:
        """Return the numbers of the rows of every step."""
        from frame.data import TensorDataset

        numbers = TensorDataset([np.arange(len(self.rows))])
        for (batch,) in Batches(self.plan, numbers):
            yield batch

    def __iter__(self) -> Iterator[tuple[np.ndarray, ...]]:
        if self.training.batch_size is None:
            for _ in range(self.steps):
                yield self.rows.columns
            return
        loader, done = self._loader(), 0
        while done < self.steps:
            for batch in loader:
                yield batch
                done += 1
                if done == self.steps:
                    break


def _validated(model: CompiledModel, kept: TensorDataset, size: int) -> float:
    from frame.data import DataLoader
    from frame.train.evaluation import evaluate

    return evaluate(model, DataLoader(kept, min(size, len(kept))))["loss"]
