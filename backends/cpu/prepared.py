"""Calls of an executable: what can be settled before a call is, and a call does the rest."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from frame.backends.cpu.frames import Binding, Frame, empty
from frame.backends.cpu.gate import Gate, make_gate, settle
from frame.backends.cpu.pool import get_pool
from frame.core import forks
from frame.core.errors import FrameError, InternalError, InvalidArgumentError
from frame.core.tensors import require_targets
from frame.hal.ports import bind_together

if TYPE_CHECKING:
    from frame.backends.cpu.executable import CpuExecutable

_ARRAY = np.ndarray
_SHAPES = 64  # shapes of inputs that are known to fit
_FRAMES, _SMALL_ARENA = 8, 1 << 20  # shapes with a frame of their own, and bytes of its arena

Shapes = tuple[tuple[int, ...], ...]
_Row = tuple[int, tuple[int, ...], np.dtype, Callable[[np.ndarray], Any]]


class _Known:
    """Shapes that were checked: what they bind, and word, shape, dtype and pointer of each.

    Some have a frame of their own, which stands ready for them from one call to the next.
    """

    __slots__ = ("binding", "frame", "gate", "rows")

    def __init__(self, binding: Binding, rows: Iterable[_Row]) -> None:
        self.binding = binding
        self.rows = tuple(rows)
        self.gate: Gate | None = None
        self.frame: Frame | None = None


class PreparedCall:
    """Calls of one executable with some inputs fixed: the parameters of a model.

    A call takes the other inputs in order. Shapes that were checked once are remembered; arrays of
    the shapes that came last, of the exact dtype, row-major, go to the native code without a
    further look, through a gate where there are gates.

    `quick(*inputs)` runs on arrays like those of the call before, and `into(*inputs, *outputs)`
    writes into arrays of the caller. Both return an array or a tuple of several, or None: nothing
    ran then, and `run` has the word.

    Raises:
        InvalidArgumentError: by `quick` and `into`, an index in the data is out of range.
        MemoryError: by both, an output could not be had.
    """

    __slots__ = (
        "_bound", "_entry", "_executable", "_fast", "_fixed", "_frame", "_frames", "_free",
        "_guarded", "_known", "_lock", "_pool", "into", "quick",
    )  # fmt: skip

    def __init__(self, executable: CpuExecutable, fixed: Mapping[int, Any]) -> None:
        self._executable = executable
        self._bound: dict[str, int] = {}
        self._fixed = tuple(self._prepared(fixed))
        self._free = tuple(i for i in range(len(executable.inputs)) if i not in fixed)
        rows = ((i, executable.inputs[i]) for i in self._free)
        self._fast = tuple((i, check.dtype, check.pointer) for i, check in rows)
        self._known: OrderedDict[Shapes, _Known] = OrderedDict()
        self._frame: Frame | None = None  # of the gates that share one
        self._lock = forks.lock()
        self._guarded = bool(executable.updates)
        self._pool = get_pool()
        self._entry = executable.entry
        self._frames = executable.frames
        self.quick: Callable[..., Any] = _nothing
        self.into: Callable[..., Any] = _nothing

    def _prepared(self, fixed: Mapping[int, Any]) -> Iterator[tuple[int, np.ndarray, Any]]:
        for i, array in sorted(fixed.items()):
            check = self._executable.inputs[i]
            check.require(array, i, self._bound, i in self._executable.updates)
            yield i, check.row_major(array, i), check.pointer

    def run(self, inputs: Sequence[Any], outputs: Sequence[Any] | None = None) -> list[np.ndarray]:
        """Run on the free inputs, in order; see `CpuExecutable.run`."""
        if outputs is None:
            result = self.quick(*inputs)
            if result is None:
                result = self.again(inputs)
            if result is not None:
                return [result] if len(self._executable.outputs) == 1 else list(result)
        return self._run_checked(inputs, outputs)

    def again(self, inputs: Sequence[Any]) -> Any:
        """Do what `quick` does, which has refused them, on arrays of any shapes that were checked
        before, and of any strides and byte order, which are copied."""
        known = self._expected(inputs)
        if known is None:
            return None
        result = self.quick(*inputs) if self._open(known) else None
        if result is None and (plain := self._row_major(inputs)) is not None:
            result = self.quick(*plain)
            if result is None:  # another call is on the frame of the gate
                result = self._attempt(known, plain)
        return result

    def _row_major(self, inputs: Sequence[Any]) -> list[np.ndarray] | None:
        """Return arrays row-major and native, None where one is of another type."""
        made, rows = list(inputs), self._fast
        for k, array in enumerate(inputs):  # `zip(..., strict=True)` takes as long as the rest
            i, dtype, _ = rows[k]
            if type(array) is not _ARRAY or array.dtype is not dtype:
                if not isinstance(array, _ARRAY) or array.dtype.newbyteorder("=") != dtype:
                    return None
                made[k] = self._executable.inputs[i].row_major(array, i)
            elif not array.flags.carray:  # one look for most arrays
                made[k] = _dense(array)
        return made

    def _attempt(self, known: _Known, inputs: Sequence[Any]) -> Any:
        """Do what `quick` does, by Python code and on any frame."""
        if not self._pool.ready:
            return None
        frame = self._frame_for(known.binding)
        try:
            for array, (word, shape, dtype, pointer) in zip(inputs, known.rows, strict=True):
                if type(array) is not _ARRAY or array.dtype is not dtype or array.shape != shape:
                    self._frames.append(frame)
                    return None
                frame.words[word] = pointer(array)
        except (ValueError, BufferError):  # another number of arrays, or one that is not row-major
            self._frames.append(frame)
            return None
        results = self._call(frame, known.binding, None)
        return results[0] if len(results) == 1 else tuple(results)

    def _expected(self, inputs: Sequence[Any]) -> _Known | None:
        """Return what is known of the shapes of arrays."""
        try:
            return self._known.get(tuple([array.shape for array in inputs]))
        except (AttributeError, TypeError):  # not arrays
            return None

    def _open(self, known: _Known) -> bool:
        """Make shapes that are known the usual ones; tell whether `quick` is another one now."""
        gate = known.gate
        if gate is None or known.frame is None:
            return self._open_first(known)
        if self.quick is gate.run:
            return False
        self.quick, self.into = gate.run, gate.into
        return True

    def _open_first(self, known: _Known) -> bool:
        """Do what `_open` does where there is no gate yet, or one that has to claim its frame."""
        if known.gate is not None and self.quick is known.gate.run:
            return False
        with self._lock:
            frame = self._frame_of_gate(known)
            if known.gate is None:
                known.gate = self._make_gate(known, frame)
            if known.gate is None:
                self.quick = partial(self._attempt_all, known)
            elif settle(known.gate, frame, known.binding):
                self.quick, self.into = known.gate.run, known.gate.into
            else:
                return False
        return True

    def _attempt_all(self, known: _Known, *inputs: Any) -> Any:
        return self._attempt(known, inputs)

    def _frame_of_gate(self, known: _Known) -> Frame:
        """Return a frame for the gate of some shapes: their own, while there are few and small."""
        if known.frame is not None:
            return known.frame
        if known.gate is None and known.binding.arena_size <= _SMALL_ARENA:
            own = sum(each.frame is not None for each in self._known.values())
            if own < _FRAMES:
                known.frame = self._kept_frame(known.binding)
                return known.frame
        if self._frame is None:
            self._frame = self._kept_frame(known.binding)
        return self._frame

    def _kept_frame(self, binding: Binding) -> Frame:
        """Return a frame that stays with this call, which never settles it again."""
        frame = self._frame_for(binding)
        frame.owner = None
        return frame

    def _make_gate(self, known: _Known, frame: Frame) -> Gate | None:
        inputs = [(word, shape, dtype) for word, shape, dtype, _ in known.rows]
        held = [(word, array) for word, array, _ in self._fixed]
        fail = partial(_fail, self._executable, frame)
        return make_gate(frame, known.binding, self._entry, inputs, held, fail)

    def _call(
        self, frame: Frame, binding: Binding, results: list[np.ndarray] | None
    ) -> list[np.ndarray]:
        """Run on a frame whose input words are set; fresh outputs where none are given."""
        words, executable = frame.words, self._executable
        if results is None:
            results = [
                empty(shape, dtype) if recycler is None else recycler.take(shape, dtype)
                for _, shape, dtype, recycler, _ in binding.results
            ]
        for array, row in zip(results, binding.results, strict=True):
            words[row[0]] = row[4](array)
        frame.status[1] = 0
        with executable.lock if self._guarded else nullcontext():
            bad = executable.entry(frame.context)
        error = _error(executable, frame) if bad else None
        executable.frames.append(frame)
        if error is not None:
            raise error
        return results

    def _frame_for(self, binding: Binding) -> Frame:
        """Return a frame that nobody uses, ready for the fixed inputs and the binding."""
        try:
            frame = self._frames.pop()
        except IndexError:
            frame = self._executable.new_frame()
        self._settle(frame, binding)
        return frame

    def _settle(self, frame: Frame, binding: Binding) -> None:
        if frame.owner is not self:
            for word, array, pointer in self._fixed:
                frame.words[word] = pointer(array)
            frame.owner = self
        if frame.binding is not binding:
            frame.bind(binding)

    def _run_checked(
        self, inputs: Sequence[Any], outputs: Sequence[Any] | None
    ) -> list[np.ndarray]:
        get_pool()  # a forked child gets its workers here
        arrays, binding = self.checked(inputs)
        return self.run_bound(self._frame_for(binding), arrays, binding, outputs)

    def run_bound(
        self,
        frame: Frame,
        arrays: Sequence[np.ndarray],
        binding: Binding,
        outputs: Sequence[Any] | None = None,
    ) -> list[np.ndarray]:
        """Run on arrays that `checked` has returned."""
        targets = self._targets(outputs, binding)
        overlap = targets is not None and self._overlap(targets, arrays)
        for array, (word, _, pointer) in zip(arrays, self._fast, strict=True):
            frame.words[word] = pointer(array)
        results = self._call(frame, binding, None if overlap else targets)
        if targets is None or not overlap:
            return results
        for target, result in zip(targets, results, strict=True):
            np.copyto(target, result)
        return targets

    def frame(self, binding: Binding) -> Frame:
        """Return a frame for a call of `run_bound`."""
        return self._frame_for(binding)

    def checked(self, inputs: Sequence[Any]) -> tuple[list[np.ndarray], Binding]:
        """Check the free inputs and return them row-major and native, with what they bind.

        Raises:
            InvalidArgumentError: a count, dtype or shape does not fit, a constraint on the sizes
                does not hold, or an updated input shares memory with another one.
        """
        executable = self._executable
        checks = [executable.inputs[i] for i in self._free]
        if len(inputs) != len(checks):
            names = ", ".join(f"{check.name}: {check.type}" for check in checks)
            raise InvalidArgumentError(
                f"expected {len(checks)} inputs ({names}), received {len(inputs)}"
            )
        bindings = dict(self._bound)
        shapes = [
            (check.shape, array.shape)
            for check, array in zip(checks, inputs, strict=True)
            if isinstance(array, np.ndarray)
        ]
        bind_together(shapes, bindings)
        rows = tuple(zip(self._free, checks, inputs, strict=True))
        for i, check, array in rows:  # all of them before the first copy
            check.require(array, i, bindings, i in executable.updates)
        arrays = [check.row_major(array, i) for i, check, array in rows]
        self._refuse_shared(arrays)
        binding = executable.binding(tuple(bindings[name] for name in executable.symbols))
        self._remember(tuple(array.shape for array in arrays), binding)
        return arrays, binding

    def _refuse_shared(self, arrays: Sequence[np.ndarray]) -> None:
        for i, array in zip(self._free, arrays, strict=True):
            if i not in self._executable.updates:
                continue
            for j, other in zip(self._free, arrays, strict=True):
                if i != j and np.may_share_memory(array, other):
                    names = [self._executable.inputs[k].name for k in (i, j)]
                    raise InvalidArgumentError(
                        f"input {i} ({names[0]!r}) is updated in place and shares memory with "
                        f"input {j} ({names[1]!r}): pass a copy"
                    )

    def _remember(self, shapes: Shapes, binding: Binding) -> None:
        if self._guarded:
            return  # such calls take a lock, and their updated inputs are checked every time
        pairs = zip(self._fast, shapes, strict=True)
        rows = ((word, shape, dtype, pointer) for (word, dtype, pointer), shape in pairs)
        with self._lock:
            self._known[shapes] = _Known(binding, rows)
            if len(self._known) > _SHAPES:
                self._known.popitem(last=False)

    def _targets(self, outputs: Sequence[Any] | None, binding: Binding) -> list[np.ndarray] | None:
        if outputs is None:
            return None
        checks = self._executable.outputs
        if not isinstance(outputs, (list, tuple)):
            raise InvalidArgumentError(
                f"expected a list of {len(checks)} arrays to write the outputs into, received "
                f"{type(outputs).__name__}"
            )
        if len(outputs) != len(checks):
            raise InvalidArgumentError(
                f"expected {len(checks)} output arrays, received {len(outputs)}"
            )
        bindings = dict(zip(self._executable.symbols, binding.values, strict=True))
        for position, (check, array) in enumerate(zip(checks, outputs, strict=True)):
            check.require_target(array, position, bindings)
        require_targets(outputs)
        return list(outputs)

    def _overlap(self, targets: Sequence[np.ndarray], arrays: Sequence[np.ndarray]) -> bool:
        """Whether a target shares memory with an input."""
        sources = [*arrays, *(array for _, array, _ in self._fixed)]
        return any(np.may_share_memory(a, b) for a, b in itertools.product(targets, sources))


def _dense(array: np.ndarray) -> np.ndarray:
    flags = array.flags
    try:
        return array if flags.c_contiguous and flags.aligned else array.copy()
    except MemoryError:
        return array  # the checks have the word, and say what could not be had


def _error(executable: CpuExecutable, frame: Frame) -> FrameError:
    """Return what a failed run reported; read before another call may take the frame."""
    site, position, value = (int(frame.status[k]) for k in (1, 2, 3))
    sites = executable.artifact.sites
    if not 1 <= site <= len(sites):
        return InternalError(
            f"{executable.artifact.entry}: expected a check from 1 to {len(sites)}, "
            f"received a report of check {site}: please report this with the model"
        )
    return sites[site - 1].error(position, value)


def _fail(executable: CpuExecutable, frame: Frame) -> NoReturn:
    raise _error(executable, frame)


def _nothing(*_: Any) -> None:
    """What a call does before any arrays were checked."""
