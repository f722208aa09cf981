"""`DeepLearningTask`: training as an immutable value that is declared step by step and then run."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from frame.compiler.optimizers import (
    SGD,
    Ema,
    Freeze,
    LossScale,
    Optimizer,
    ParameterGroup,
    Recipe,
    Swa,
)
from frame.compiler.optimizers.recipe import Average
from frame.core.arguments import flag, plain, real, refuse, settle, shown, text, whole
from frame.core.arguments import path as path_text
from frame.core.dataclass import dataclass
from frame.core.errors import InvalidArgumentError
from frame.ir.graph import TensorType
from frame.nn.module import Architecture, Module
from frame.runtime.model import EVALUATE, CompiledModel
from frame.runtime.model import compile as compile_model
from frame.train.augment import ImageAugmentation
from frame.train.callbacks import Callback, as_callback, checked_path
from frame.train.checkpoints import CheckpointRule
from frame.train.feed import Feed, check_label_types, check_labels, make_feed
from frame.train.initialiser import Initializer
from frame.train.metrics import Metric, named_metrics
from frame.train.records import EarlyStop, History
from frame.train.resolution import Resolution, checked_layout, pixels, train_sizes
from frame.train.running import TrainingRun, check_snapshots
from frame.train.schedules import Scheduler
from frame.train.views import Views
from frame.train.warp import Look, Pixels

if TYPE_CHECKING:  # the passes are not loaded where a cache has what they made
    from frame.compiler.passes.rematerialisation import Rematerialisation

Pathlike = str | os.PathLike[str]
Seed = int  # of 64 bits, where other integers have 32
MOST_SEED = 2**64 - 1

_NONE = type(None)
_KINDS: Mapping[str, tuple[type, ...]] = {
    "network": (Module, Architecture, _NONE),
    "feed": (Feed, _NONE),
    "criterion": (Module, _NONE),
    "optimizer_record": (Optimizer,),
    "scheduler_record": (Scheduler, _NONE),
    "stopping": (EarlyStop, _NONE),
    "averaging": (Ema, Swa, _NONE),
    "saving": (CheckpointRule, _NONE),
    "augmentation": (ImageAugmentation, _NONE),
    "views": (Views, _NONE),
    "start": (Initializer, _NONE),
    "scaling": (LossScale, _NONE),
    "resolutions": (Resolution, _NONE),
}
"""Field of a task -> what it may be, where its annotation is no number or text."""


@dataclass(frozen=True, slots=True)
class DeepLearningTask:
    """A training task. Each method returns a new task; `run` runs it.

    ```python
    task = (
        DeepLearningTask()
        .model(net)
        .data((x, y), (x_val, y_val), batch_size=64)
        .loss(CrossEntropyLoss(label_smoothing=0.1))
        .optimizer(SGD(momentum=0.9, weight_decay=1e-4))
        .scheduler(CosineAnnealingLR(base_lr=0.1, warmup=5))
        .total_epochs(30)
    )
    history = task.run()
    ```

    Arguments are checked when they are given. Model, data, loss and scheduler are needed; without
    an optimizer it is SGD with a momentum of 0.9. Forward, backward, accumulation, clipping, update
    and averages are one compiled executable. The same task gives the same weights bit for bit, for
    any number of threads, and whether or not it was interrupted and resumed between.

    The fields are what the methods set.
    """

    network: Module | Architecture | None = None
    feed: Feed | None = None
    criterion: Module | None = None
    optimizer_record: Optimizer = SGD(momentum=0.9)
    groups: tuple[ParameterGroup, ...] = ()
    decay_all: bool = False
    scheduler_record: Scheduler | None = None
    epochs: int = 35
    validation_rhythm: tuple[int, int] = (1, 0)
    metric_names: tuple[str | Metric, ...] = ("top1",)
    stopping: EarlyStop | None = None
    thresholds: tuple[tuple[str, float], ...] = ()
    seed_value: Seed = 0
    clip_value: float | None = None
    clip_norm: float | None = None
    accumulation: int = 1
    averaging: Average | None = None
    use_average: bool = True
    freezes: tuple[Freeze, ...] = ()
    saving: CheckpointRule | None = None
    best_path: str | None = None
    snapshots: tuple[tuple[int, str], ...] = ()
    callbacks: tuple[Callback, ...] = ()
    bar: bool | None = None
    backend_name: str | None = None
    augmentation: ImageAugmentation | None = None
    views: Views | None = None
    start: Initializer | None = None
    recomputing: Rematerialisation | None = None
    precision: str = ""
    scaling: LossScale | None = None
    resolutions: Resolution | None = None
    class_count: int | None = None
    first_layer_after: int | None = None
    switches: bool = False
    sema: float = 0.9

    def __post_init__(self) -> None:
        """Check fields that were given without the methods.

        Raises:
            InvalidArgumentError: one is of another type, or counts less than one epoch.
        """
        settle("DeepLearningTask", self)
        whole("DeepLearningTask", "epochs", self.epochs)
        whole("DeepLearningTask", "seed_value", self.seed_value, 0, MOST_SEED)
        for name, kinds in _KINDS.items():
            value = getattr(self, name)
            if not isinstance(value, kinds):
                expected = " or ".join(kind.__name__ for kind in kinds)
                refuse("DeepLearningTask", name, expected.replace("NoneType", "None"), value)

    # --- what is trained --------------------------------------------------------------------------

    def model(self, model: Module | Architecture) -> DeepLearningTask:
        """Train this Module or blueprint."""
        if not isinstance(model, (Module, Architecture)) or isinstance(model, type):
            raise _wrong("model", "a Module of frame.nn or a blueprint", model)
        return replace(self, network=model)

    def data(
        self,
        train: Any,
        validation: Any = None,
        *,
        batch_size: int | None = None,
        shuffle: bool = True,
        drop_last: bool = False,
        targets: int = 1,
    ) -> DeepLearningTask:
        """Train on rows (inputs..., targets...), and validate on others.

        Args:
            train: a tuple of arrays with the rows along axis 0, a Dataset, or a DataLoader.
            validation: the same, or None.
            batch_size: rows of a step; 32 by default, and that of a DataLoader.
            shuffle: whether each epoch has another order, which follows from the seed.
            drop_last: whether rows that fill no batch are left out. A step whose batches all have
                one size is compiled for it, and quicker.
            targets: how many of the last columns go to the loss.

        Raises:
            InvalidArgumentError: a split is empty, holds NaN or infinities, or differs in its
                columns; or a number is out of range.
        """
        feed = make_feed(train, validation, batch_size, shuffle, drop_last, targets)
        return replace(self, feed=feed)

    def augment(self, augmentation: ImageAugmentation) -> DeepLearningTask:
        """Augment the first input, images, as a part of the compiled training step."""
        if not isinstance(augmentation, ImageAugmentation):
            raise _wrong(
                "augment", "augmentation to be ImageAugmentation(shift=1, ...)", augmentation
            )
        return replace(self, augmentation=augmentation)

    def train_resolution(
        self,
        size: int | tuple[int, int] | Mapping[int, int | tuple[int, int]],
        *,
        layout: str | None = None,
    ) -> DeepLearningTask:
        """Scale the first input, images, to another height and width in training; also by epochs.

        `.train_resolution({0: 24, 5: 32})` trains on 24 x 24 pixels for five epochs, then on
        32 x 32. The images are scaled in the pass of the augmentation, which sees them as they are
        in the data. Each size has a training step of its own, compiled at its first use, with one
        set of parameters and states. The model must take all sizes, as one whose last pool is
        global does. A size that is never reached is a warning.

        Args:
            size: pixels (one number, or height and width), or such sizes by the number of epochs
                that are done before them, with 0 among them.
            layout: of the images; that of the augmentation if there is one, else `NHWC` for
                blueprints and `NCHW` for modules.

        Raises:
            InvalidArgumentError: a size or an epoch is out of range; when it is compiled: the
                network can't be built for a size, or the augmentation has another layout.
        """
        return self._resolved(layout, train=train_sizes(size))

    def val_resolution(
        self, size: int | tuple[int, int], *, layout: str | None = None
    ) -> DeepLearningTask:
        """Scale the images to this size in validation, and for the trained model; see above."""
        return self._resolved(layout, validate=pixels("val_resolution", "size", size))

    def input_resolution(
        self, size: int | tuple[int, int], *, layout: str | None = None
    ) -> DeepLearningTask:
        """Scale the images to this size in training and in validation."""
        found = pixels("input_resolution", "size", size)
        return self._resolved(layout, train=((0, found),), validate=found)

    def progressive_resize(
        self, begin: int | tuple[int, int], end: int | tuple[int, int]
    ) -> DeepLearningTask:
        """In training scale images to `begin`, from the boundary of `train_resolution` on to `end`.

        Out of what was scaled `progressive_crop` takes its windows, in one pass; alone it would
        mean nothing, as the network gets the size of `train_resolution`.

        Raises:
            InvalidArgumentError: a size is out of range; when it is compiled: there is not one
                boundary, or no `progressive_crop`.
        """
        return self._resolved(None, resizes=_both("progressive_resize", begin, end))

    def progressive_crop(
        self, begin: int | tuple[int, int], end: int | tuple[int, int]
    ) -> DeepLearningTask:
        """In training show a window of the image at a random place: `begin` pixels, then `end`.

        The change is at the one boundary of `train_resolution({0: ..., boundary: ...})`, to whose
        size each window is scaled; where both have one size pixels are copied. The window is taken
        of the image as `progressive_resize` scales it, or as it is. Validation sees whole images.

        Raises:
            InvalidArgumentError: a size is out of range; when it is compiled: there is not one
                boundary, or a window is larger than what it is taken of.
        """
        return self._resolved(None, crops=_both("progressive_crop", begin, end))

    def _resolved(self, layout: str | None, **changes: Any) -> DeepLearningTask:
        rule = self.resolutions or Resolution()
        given = checked_layout("resolution", layout) or rule.layout
        return replace(self, resolutions=replace(rule, layout=given, **changes))

    def tta(self, views: Views) -> DeepLearningTask:
        """Augment at test time: in validation, answer by the mean over several views of the first
        input, images.

        The trained model predicts in the same way. The paths of its parameters are those of the
        network, so `frame.compile(network, ..., params=history.model.params)` is it without views.
        """
        if not isinstance(views, Views):
            raise _wrong("tta", "views such as Views(mirror=True, shift=1)", views)
        return replace(self, views=views)

    def initializer(self, initializer: Initializer) -> DeepLearningTask:
        """Begin with other weights than those that the layers declare."""
        if not isinstance(initializer, Initializer):
            raise _wrong("initializer", "Initializer(conv=nn.kaiming_normal())", initializer)
        return replace(self, start=initializer)

    def loss(self, loss: Module) -> DeepLearningTask:
        """Minimise this loss: a Module of (outputs..., targets...) that gives one number."""
        if not isinstance(loss, Module):
            raise _wrong("loss", "a Module such as CrossEntropyLoss(label_smoothing=0.1)", loss)
        return replace(self, criterion=loss)

    def optimizer(
        self,
        optimizer: Optimizer,
        groups: Sequence[ParameterGroup] = (),
        *,
        decay_all: bool = False,
    ) -> DeepLearningTask:
        """Update the parameters by this optimizer.

        Args:
            optimizer: SGD, Adam, AdamW, LARS, Lion, or a record of your own.
            groups: parameters with a rate or options of their own.
            decay_all: whether weight decay reaches biases and the parameters of normalisations
                (those of rank 0 and 1), too.

        Raises:
            InvalidArgumentError: it is no optimizer, or a group has an unknown option.
        """
        if not isinstance(optimizer, Optimizer) or isinstance(optimizer, Recipe):
            raise _wrong("optimizer", "an optimizer such as SGD(momentum=0.9)", optimizer)
        given = tuple(groups) if isinstance(groups, (tuple, list)) else (groups,)
        for group in given:
            if not isinstance(group, ParameterGroup):
                raise _wrong("optimizer", "groups of ParameterGroup", group)
        every = flag("optimizer", "decay_all", decay_all)
        made = replace(self, optimizer_record=optimizer, groups=given, decay_all=every)
        made._recipe(made.freezes)
        return made

    def scheduler(self, scheduler: Scheduler) -> DeepLearningTask:
        """Let the learning rate follow this scheduler."""
        if not isinstance(scheduler, Scheduler):
            raise _wrong("scheduler", "a scheduler such as ConstantLR(base_lr=0.1)", scheduler)
        return replace(self, scheduler_record=scheduler)

    def manual_seed(self, seed: int) -> DeepLearningTask:
        """Fix every random number: initial weights, order of rows, dropout, augmentation."""
        return replace(self, seed_value=whole("manual_seed", "seed", seed, 0, MOST_SEED))

    def auto_seed(self) -> DeepLearningTask:
        """Choose a seed that is new each time; it is `seed_value`, so the run can be repeated."""
        return replace(self, seed_value=int.from_bytes(os.urandom(4), "little"))

    def backend(self, name: str) -> DeepLearningTask:
        """Compile for this backend."""
        if not isinstance(name, str):
            raise _wrong("backend", "the name of a backend", name)
        return replace(self, backend_name=name)

    # --- how long, and what is measured -----------------------------------------------------------

    def total_epochs(self, epochs: int) -> DeepLearningTask:
        """Run so many epochs (35 by default)."""
        return replace(self, epochs=whole("total_epochs", "epochs", epochs))

    def num_classes(self, classes: int) -> DeepLearningTask:
        """Expect outputs of so many classes; another number is an error before the first step."""
        return replace(self, class_count=whole("num_classes", "classes", classes))

    def validate_every(self, interval: int, offset: int = 0) -> DeepLearningTask:
        """Validate after the epochs offset, offset + interval, ..., counted from 1, and the last.

        An offset of 0 means the first multiple of the interval.
        """
        owner = "validate_every"
        rhythm = whole(owner, "interval", interval), whole(owner, "offset", offset, 0)
        return replace(self, validation_rhythm=rhythm)

    def metrics(self, *metrics: str | Metric) -> DeepLearningTask:
        """Measure these beside the loss: names from METRICS (`top1`, `top5`, ...) or functions.

        Raises:
            NotFoundError: there is no metric of a name.
            InvalidArgumentError: one is given twice, or is `loss`, which is always measured.
        """
        names = tuple(metric for metric in metrics if metric != "loss")
        named_metrics(names)
        return replace(self, metric_names=names)

    def early_stop(
        self, value: str = "val_loss", patience: int = 5, least: float = 0.0, restore: bool = False
    ) -> DeepLearningTask:
        """Stop when a value has not improved for `patience` epochs; see `EarlyStop`.

        The best epoch by this value is the one whose checkpoint stays and whose model is saved.
        """
        return replace(self, stopping=EarlyStop(value, patience, least, restore))

    def stop_at(self, value: str, threshold: float) -> DeepLearningTask:
        """Stop as soon as a value has reached a threshold: from above for losses and errors."""
        row = text("stop_at", "value", value), real("stop_at", "threshold", threshold)
        return replace(self, thresholds=(*self.thresholds, row))

    def early_stop_by_top1(self, threshold: float) -> DeepLearningTask:
        """Stop as soon as the accuracy of the validation is at least `threshold`, in (0, 1]."""
        if not 0 < real("early_stop_by_top1", "threshold", threshold) <= 1:
            raise _wrong("early_stop_by_top1", "threshold as a share in (0, 1]", threshold)
        return self.stop_at("val_top1", threshold)

    # --- inside of the compiled step --------------------------------------------------------------

    def grad_clip(
        self, max_abs: float | None = None, *, norm: float | None = None
    ) -> DeepLearningTask:
        """Clamp each gradient to [-max_abs, max_abs], then scale all to a joint norm of `norm`.

        Raises:
            InvalidArgumentError: there is no limit, or one is not above 0.
        """
        limits = {"max_abs": max_abs, "norm": norm}
        if max_abs is None and norm is None:
            raise _wrong("grad_clip", "max_abs, norm or both", None)
        for name, value in limits.items():
            if value is not None and not real("grad_clip", name, value) > 0:
                raise _wrong("grad_clip", f"{name} above 0", value)
        most, joint = map(plain, limits.values())
        return self._checked(clip_value=most, clip_norm=joint)

    def accumulate(self, steps: int) -> DeepLearningTask:
        """Update once in so many steps, by the mean of their gradients."""
        return self._checked(accumulation=whole("accumulate", "steps", steps))

    def average(self, average: Ema | Swa, *, use: bool = True) -> DeepLearningTask:
        """Keep an average of the weights, validate it, too (`val_average_...`), and let the model
        have it in the end if `use`."""
        if not isinstance(average, (Ema, Swa)):
            raise _wrong("average", "Ema(...) or Swa(...)", average)
        return replace(
            self, averaging=average, use_average=flag("average", "use", use), switches=False
        )

    def use_sema(self, on: bool = True) -> DeepLearningTask:
        """Let the weights go on from their moving average after each epoch: switch EMA.

        The average (`sema_decay`, 0.9 by default) is kept in place of that of `average`;
        at the end of an epoch, before it is validated, it becomes the weights.
        Source: Li et al., "Switch EMA", arXiv 2402.09240.
        """
        return replace(self, switches=flag("use_sema", "on", on))

    def sema_decay(self, decay: float) -> DeepLearningTask:
        """Use this decay for `use_sema`, in [0, 1)."""
        return replace(self, sema=Ema(decay, warm=False).decay)

    def freeze(self, *patterns: str, after_epoch: int = 0) -> DeepLearningTask:
        """Keep the parameters whose paths match a pattern, from the end of an epoch on.

        With 0 they are never trained, and cost no gradient.
        """
        late = whole("freeze", "after_epoch", after_epoch, 0)
        return replace(self, freezes=(*self.freezes, Freeze(patterns, late)))

    def freeze_first_layer_after(self, epoch: int) -> DeepLearningTask:
        """Keep the parameters of the first layer that has any, from the end of an epoch on.

        It is the first one declared that has parameters and no layer with parameters below it: the
        embedding of patches of `vit`, that of words of `bert`. With 0 they are never trained;
        neither momentum nor decay moves them afterwards.
        """
        number = whole("freeze_first_layer_after", "epoch", epoch, 0)
        return replace(self, first_layer_after=number)

    def remat(self, *modules: str, budget: int = 0) -> DeepLearningTask:
        """Compute values of the forward part again in the backward part; weights stay the same.

        Args:
            modules: patterns of module paths, such as `encoder.*`: what is made inside of such a
                module is not kept.
            budget: the bytes that the arena of a step may have (`model.memory()` shows it); what
                is not kept is then chosen, as little as is enough.

        The batches of a step must have one size, see `drop_last` of `data`.

        Raises:
            InvalidArgumentError: there is neither a pattern nor a budget; when it is compiled: no
                module matches a pattern, or the budget is too small.
        """
        from frame.compiler.passes.rematerialisation import Rematerialisation

        most = whole("remat", "budget", budget, 0, 2**62)
        good = all(isinstance(each, str) and each and " " not in each for each in modules)
        if not good or not (modules or budget):
            raise _wrong(
                "remat", "modules as patterns of module paths such as 'encoder.*'", modules
            )
        return replace(self, recomputing=Rematerialisation(" ".join(modules), most))

    def amp(
        self, precision: str = "bfloat16", scaling: LossScale | None = None
    ) -> DeepLearningTask:
        """Train in mixed precision: products in `bfloat16` or `float16`, weights in float32.

        Validation and the trained model run in float32.

        Args:
            precision: of products and convolutions; see `frame.compiler.autocast`.
            scaling: how the loss is scaled for the backward part; for float16, whose small
                gradients become zero, by `LossScale()` if nothing is said.
        """
        if scaling is None and text("amp", "precision", precision) == "float16":
            scaling = LossScale()
        return self._checked(precision=precision, scaling=scaling)

    def _checked(self, **changes: Any) -> DeepLearningTask:
        made: DeepLearningTask = replace(self, **changes)
        made._recipe(made.freezes)
        return made

    # --- what is kept -----------------------------------------------------------------------------

    def checkpoints(
        self,
        folder: Pathlike,
        *,
        every_epochs: int = 1,
        every_steps: int | None = None,
        keep: int = 3,
    ) -> DeepLearningTask:
        """Write checkpoints to a folder, from which `run` goes on; keep the last ones and the best.

        Args:
            folder: made when it is not there; of this task alone.
            every_epochs: after how many epochs.
            every_steps: also within an epoch, after each step whose number is a multiple of this.
            keep: how many of the last ones stay.
        """
        owner = "checkpoints"
        steps = None if every_steps is None else whole(owner, "every_steps", every_steps)
        rule = CheckpointRule(
            path_text(owner, "folder", folder),
            whole(owner, "every_epochs", every_epochs),
            steps,
            whole(owner, "keep", keep),
        )
        return replace(self, saving=rule)

    def save_best_model(self, path: Pathlike) -> DeepLearningTask:
        """Write the model of the best epoch so far: `.safetensors` or `.npz` for the parameters,
        `.frame` for the whole model.

        The best epoch is that of `early_stop`, else of `val_top1`, `val_loss` or `loss`.
        """
        return replace(self, best_path=_model_path("save_best_model", path))

    def save_model_at_epoch(self, epoch: int, path: Pathlike) -> DeepLearningTask:
        """Write the model as it is after an epoch, counted from 1; see `save_best_model`.

        Each call adds an epoch. One that is never reached, as the training stops early, leaves no
        file.
        """
        number = whole("save_model_at_epoch", "epoch", epoch)
        row = number, _model_path("save_model_at_epoch", path)
        return replace(self, snapshots=(*self.snapshots, row))

    def callback(self, *callbacks: Any) -> DeepLearningTask:
        """Call these, too: a Callback (`CsvLog`, `JsonLinesLog`, `TensorBoardLog`, `HtmlReport`, or
        your own), or a function of the record of an epoch."""
        added = tuple(as_callback(each) for each in callbacks)
        return replace(self, callbacks=(*self.callbacks, *added))

    def progress(self, show: bool | None) -> DeepLearningTask:
        """Show a progress bar; by default (None) on a terminal only."""
        return replace(self, bar=None if show is None else flag("progress", "show", show))

    # --- running ----------------------------------------------------------------------------------

    def run(self, *, resume: bool = True) -> History:
        """Train, and return the history with the trained model.

        Args:
            resume: whether to go on from the newest checkpoint in the folder of `checkpoints`.

        Raises:
            InvalidArgumentError: something is missing or does not fit; the checkpoints are of
                another task; or the loss is not finite.
        """
        goes_on = flag("run", "resume", resume)
        return TrainingRun(self, self.compile()).run(goes_on)

    def dry_run(self) -> History:
        """Compile everything, run an update of each size and resolution, validate one batch.

        Nothing is written, no callback is called, and the task stays as it is: a long training
        that would fail at its first validation fails here.

        Raises:
            InvalidArgumentError: as `run`.
        """
        check_snapshots(self)
        rule = self.resolutions
        sizes = 1 if rule is None else max(len(rule.train), 1)
        brief = replace(
            self,
            feed=self.checked_feed().first(self.accumulation),
            epochs=sizes,
            resolutions=None if rule is None else rule.in_turn(),
            validation_rhythm=(sizes, 0),
            stopping=None if self.stopping is None else replace(self.stopping, patience=sizes + 1),
            thresholds=tuple((name, math.nan) for name, _ in self.thresholds),
            saving=None,
            best_path=None,
            snapshots=(),
            callbacks=(),
            bar=False,
        )
        return brief.run(resume=False)

    def compile(self) -> CompiledModel:
        """Return the model with its training step compiled and initial weights, untrained.

        Raises:
            InvalidArgumentError: something is missing or does not fit.
        """
        feed, _, loss = self.checked_feed(), self._checked_model(), self._checked_loss()
        self.checked_scheduler()
        labelled = loss.kind in ("CrossEntropyLoss", "NLLLoss")
        if labelled:
            check_label_types(feed)
        inputs, targets = feed.specs()
        rule = self.rule()
        if rule is not None:
            rule.check(partial(self._module, inputs), inputs, rule.layout)
        network = self._module(inputs)
        model = compile_model(
            network,
            inputs,
            backend=self.backend_name,
            loss=loss,
            targets=targets,
            optimizer=self.recipe(),
            sizes=feed.sizes(),
            seed=self.seed_value,
            params=self._start(network, inputs),
            passes=None if self.recomputing is None else (self.recomputing,),
        )
        self._check_class_count(model)
        if labelled:
            check_labels(feed, _classes(model), dict(loss.options).get("ignore_index"))
        return model

    def variant(self, model: CompiledModel, look: Look) -> CompiledModel:
        """Return a new variant of this task's compiled model that trains at a resolution."""
        feed = self.checked_feed()
        inputs, targets = feed.specs()
        return model.variant(inputs, targets, feed.sizes(), self._module(inputs, look))

    def _check_class_count(self, model: CompiledModel) -> None:
        wanted = self.class_count
        if wanted is not None and _classes(model) != wanted:
            raise _wrong(
                "num_classes", f"a model with outputs of {wanted} classes", _classes(model)
            )

    def rule(self) -> Resolution | None:
        """Return the resolutions with their layout."""
        rule, change = self.resolutions, self.augmentation
        if rule is None:
            return None
        usual = "NCHW" if isinstance(self.network, Module) else "NHWC"
        rule.check_counts()
        layout = rule.layout or (usual if change is None else change.layout)
        if change is not None and change.layout != layout:
            raise _wrong(
                "resolution", f"the layout of the augmentation, {change.layout}", rule.layout
            )
        return replace(rule, layout=layout)

    def _bare(self, inputs: Sequence[TensorType]) -> Module:
        """Return the network alone."""
        network, rule = self._checked_model(), self.rule()
        if isinstance(network, Module):
            return network
        made: Module = network.module_for(
            inputs if rule is None else rule.scaled(inputs, rule.layout)
        )
        return made

    def _module(self, inputs: Sequence[TensorType], look: Look | None = None) -> Module:
        """Return what is trained, at a resolution (the last one for None)."""
        network, rule = self._bare(inputs), self.rule()
        if self.views is not None:
            network = self.views.around(network)
        if rule is None:
            return network if self.augmentation is None else self.augmentation.around(network)
        change = self.augmentation or ImageAugmentation(layout=rule.layout)
        return rule.around(network, change, rule.last if look is None else look)

    def _start(self, network: Module, inputs: Sequence[TensorType]) -> dict[str, Any] | None:
        """Return the initial values that differ from those that the layers declare."""
        if self.start is None:
            return None
        return dict(self.start.values(network, self.seed_value, inputs))

    def recipe(self) -> Recipe:
        """Return the optimizer with what stands around its update; it needs model and data."""
        return self._recipe((*self.freezes, *self._first_layer()))

    def _recipe(self, freezes: Sequence[Freeze]) -> Recipe:
        steps = None if self.feed is None else len(self.feed.train_loader(0)) // self.accumulation
        late = tuple(
            replace(freeze, after=freeze.after * (steps or 1)) if freeze.after else freeze
            for freeze in freezes
        )
        return Recipe(
            self.optimizer_record,
            self.groups,
            self.decay_all,
            self.clip_value,
            self.clip_norm,
            self.accumulation,
            Ema(self.sema, warm=False) if self.switches else self.averaging,
            late,
            self.precision,
            self.scaling,
        )

    def _first_layer(self) -> tuple[Freeze, ...]:
        """Return what freezes the first layer."""
        after = self.first_layer_after
        if after is None:
            return ()
        network = self._bare(self.checked_feed().specs()[0])
        names = first_layer(network)
        if not names:
            raise _wrong("freeze_first_layer_after", "a model with parameters", network)
        return (Freeze(names, after),)

    def checked_feed(self) -> Feed:
        """Return the data; raise InvalidArgumentError if there is none."""
        return _given("data", self.feed, "data((x, y), batch_size=32)")

    def checked_scheduler(self) -> Scheduler:
        """Return the scheduler; raise InvalidArgumentError if there is none."""
        return _given("scheduler", self.scheduler_record, "scheduler(ConstantLR(base_lr=0.1))")

    def _checked_model(self) -> Module | Architecture:
        return _given("model", self.network, "model(net)")

    def _checked_loss(self) -> Module:
        return _given("loss", self.criterion, "loss(CrossEntropyLoss())")


def _given(name: str, value: Any, example: str) -> Any:
    if value is None:
        raise InvalidArgumentError(f"the task has no {name}: call .{example} before run()")
    return value


def _wrong(method: str, expected: str, received: object) -> InvalidArgumentError:
    return InvalidArgumentError(f"{method}: expected {expected}, received {shown(received)}")


def _model_path(method: str, path: Pathlike) -> str:
    target = path_text(method, "path", path)
    if not target.endswith((".safetensors", ".npz", ".frame")):
        raise _wrong(method, "a path that ends in .safetensors, .npz or .frame", path)
    return checked_path(target)


def first_layer(network: Module) -> tuple[str, ...]:
    """Return the paths of the parameters of the first layer, which are none of a layer below it."""
    for path, module in network.modules():
        own = [spec.name for spec in module.specs if spec.trainable]
        below = any(spec.trainable for child in module.children for spec in child.parameters())
        if own and not below:
            return tuple(f"{path}.{name}" if path else name for name in own)
    return ()


def _both(method: str, begin: Any, end: Any) -> tuple[Pixels, Pixels]:
    return pixels(method, "begin", begin), pixels(method, "end", end)


def _classes(model: CompiledModel) -> int:
    """Return the size of the last axis of the output."""
    type_: TensorType = model.declaration(EVALUATE).graph.outputs[1].type
    return int(type_.shape[-1])  # type: ignore[arg-type]
