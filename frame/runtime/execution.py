"""One run of a program of several steps: queues work on devices and waits only where it must.

Each device has two streams: pieces run on one, copies on the other, so that a copy may overlap with
a piece. What one stream makes and another one reads is ordered by an event; the host waits for an
event where it reads. State changes last, when all work has ended well: the last piece may update it
in place, once everything before it is known to have succeeded.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from frame.core.devices import HOST, Device
from frame.core.errors import FrameError
from frame.hal.interfaces import Event, KernelTime, Signature, Stream
from frame.hal.ports import bind_inputs
from frame.ir.constraints import check_constraints
from frame.runtime.backends import backend
from frame.runtime.residence import Resident
from frame.runtime.steps import HostStep, RunStep, Step, TransferStep, WriteBackStep

if TYPE_CHECKING:
    from frame.runtime.program import Program

RUN, COPY = "run", "copy"
Lanes = dict[tuple[Device, str], Stream]


class Run:
    """The state of one run. `inputs` are host arrays or `Resident` state."""

    def __init__(
        self, program: Program, inputs: Sequence[Any], lanes: Lanes, profiled: bool = False
    ) -> None:
        self.program = program
        self.times: list[KernelTime] = []
        self._profiled = profiled
        self._lanes = lanes
        arrays, self._bindings = _bound(program.signature, inputs)
        check_constraints(program.signature.constraints, self._bindings)
        self._slots: dict[int, Any] = dict(enumerate(arrays))
        self._given = inputs
        self._states = {k: v for k, v in enumerate(inputs) if isinstance(v, Resident)}
        self._made: dict[int, tuple[Stream, Event]] = {}  # slots that a stream makes
        self._owned: dict[int, Device] = {}  # slots of device memory that this run must free
        self._copies: dict[int, Resident] = {}  # slots of a state's own device memory
        self._ran = False  # whether a piece has been started

    def results(self) -> list[np.ndarray]:
        """Run every step, wait for all devices, change the state and return the results.

        Raises:
            FrameError: what a step failed with; then no state has changed. What fails after the
                last piece (copying its results to the host) may leave states that it updates in
                place with their new values.
        """
        try:
            for step in self.program.steps:
                self._timed(step)
            results = self._outputs()
            for stream in self._lanes.values():
                stream.synchronize()
        except BaseException:
            self._abandon()
            raise
        self._commit()
        self._free()
        return results

    def _timed(self, step: Step) -> None:
        if not self._profiled or isinstance(step, RunStep):
            _STEPS[type(step)](self, step)
            return
        start = time.perf_counter()
        _STEPS[type(step)](self, step)
        for stream in self._lanes.values():
            stream.synchronize()
        if name := _step_name(step):
            self.times.append(KernelTime(name, _origins(step), time.perf_counter() - start))

    # --- waiting ----------------------------------------------------------------------------------

    def _lane(self, device: Device, kind: str) -> Stream:
        if (device, kind) not in self._lanes:
            self._lanes[device, kind] = backend(device.backend).stream(device)
        return self._lanes[device, kind]

    def _on(self, slot: int, stream: Stream) -> Any:
        """Return the memory of a slot for work of a stream, which waits for it."""
        made = self._made.get(slot)
        if made is not None and made[0] is not stream:
            stream.wait(made[1])
        return self._slots[slot]

    def _host(self, slot: int) -> np.ndarray:
        """Return the host array of a slot, after waiting for it."""
        made = self._made.pop(slot, None)
        if made is not None:
            made[1].synchronize()
        state = self._states.get(slot)
        self._slots[slot] = array = np.asarray(self._slots[slot]) if state is None else state.host()
        return array

    def _keep(self, slots: Iterable[int], values: Iterable[Any], stream: Stream) -> None:
        event = stream.record()
        for slot, value in zip(slots, values, strict=True):
            self._slots[slot] = value
            self._made[slot] = (stream, event)

    # --- steps ------------------------------------------------------------------------------------

    def _run(self, step: RunStep) -> None:
        piece = self.program.pieces[step.piece]
        updated = [step.inputs[k] for k in piece.executable.signature.updates]
        if updated and (piece.device == HOST or self._ran):
            for lane in self._lanes.values():
                lane.synchronize()
        self._ran = True
        if piece.device == HOST:
            inputs = [self._host(slot) for slot in step.inputs]
            self._profile(piece.executable, inputs)
            for slot in updated:
                self._changed_on_host(slot)
            inputs = [self._slots[slot] for slot in step.inputs]
            results = piece.executable.run(inputs, None, None)
            self._slots.update(zip(step.outputs, results, strict=True))
            return
        stream = self._lane(piece.device, RUN)
        inputs = [self._on(slot, stream) for slot in step.inputs]
        self._profile(piece.executable, inputs)
        for slot in updated:
            if state := self._copies.get(slot):
                state.changed(piece.device)  # before the run, for an interrupt that comes after it
        results = piece.executable.run(inputs, None, stream)
        self._keep(step.outputs, results, stream)
        self._owned.update(dict.fromkeys(step.outputs, piece.device))

    def _changed_on_host(self, slot: int) -> None:
        """Prepare the host array of a state for a piece that updates it in place."""
        if state := self._states.get(slot):
            state.changed(HOST)  # before the run, for an interrupt that comes after it
        elif not self._slots[slot].flags.c_contiguous:
            self._slots[slot] = np.array(self._slots[slot], order="C")

    def _profile(self, executable: Any, inputs: Sequence[Any]) -> None:
        if self._profiled:
            for stream in self._lanes.values():
                stream.synchronize()
            self.times.extend(executable.profile(inputs))

    def _transfer(self, step: TransferStep) -> None:
        if step.origin == HOST and step.source in self._states:
            state = self._copies[step.target] = self._states[step.source]
            self._slots[step.target] = state.on(step.device)
            return
        owner = backend((step.origin if step.device == HOST else step.device).backend)
        if step.device == HOST:
            stream = self._lane(step.origin, COPY)
            moved = owner.download(self._on(step.source, stream), stream)
        else:
            stream = self._lane(step.device, COPY)
            if step.origin == HOST:
                moved = owner.upload(self._host(step.source), step.device, stream)
            else:
                moved = owner.copy(self._on(step.source, stream), step.device, stream)
            self._owned[step.target] = step.device
        self._keep((step.target,), (moved,), stream)

    def _references(self, step: HostStep) -> None:
        from frame.ops.interpreter import interpret

        inputs = [self._host(slot) for slot in step.inputs]
        results = interpret(step.graph, inputs, self._bindings, precision="native")
        self._slots.update(zip(step.outputs, results, strict=True))

    def _later(self, step: WriteBackStep) -> None:
        """State changes when all steps have ended well."""

    # --- the end ----------------------------------------------------------------------------------

    def _outputs(self) -> list[np.ndarray]:
        """Return the results: never an input itself, and no array twice."""
        count, seen, found = len(self._given), set(), []
        for slot in self.program.outputs:
            array = self._host(slot)
            found.append(np.array(array) if slot < count or slot in seen else array)
            seen.add(slot)
        return found

    def _commit(self) -> None:
        """Give the updated inputs their new values: all are there before the first changes."""
        steps = [step for step in self.program.steps if isinstance(step, WriteBackStep)]
        taken: set[int] = set()
        ready = []
        for step in steps:
            ready.append((step, self._new_value(step, taken)))
            taken.add(step.source)
        for step, value in ready:
            state = self._states.get(step.input)
            if state is None:
                if value is not self._given[step.input]:  # else it was updated in place
                    np.copyto(self._given[step.input], np.asarray(value))
            elif step.source == step.input:
                continue  # its host array was updated in place
            elif step.device == HOST:
                np.copyto(state.array, value)
                state.changed(HOST)
            elif self._copies.get(step.source) is not state:  # else its memory was updated in place
                state.replace(step.device, value)

    def _new_value(self, step: WriteBackStep, taken: set[int]) -> Any:
        """Return what an input gets, in memory that nobody else uses."""
        state = self._states.get(step.input)
        owned = step.source in self._owned and step.source not in taken
        if step.device == HOST:
            array = self._host(step.source)
            own = step.source >= len(self._given) or step.source == step.input
            return array if own else np.array(array)
        owner, storage = backend(step.device.backend), self._slots[step.source]
        if state is None:
            return owner.download(storage)
        if owned:
            del self._owned[step.source]
        if owned or self._copies.get(step.source) is state:
            return storage
        return owner.copy(storage, step.device)

    def _free(self) -> None:
        for slot, device in self._owned.items():
            backend(device.backend).allocator(device).free(self._slots[slot])

    def _abandon(self) -> None:
        """Let queued work end, as it may read arrays of the caller; the first failure is raised."""
        for stream in self._lanes.values():
            with suppress(FrameError):
                stream.synchronize()
        with suppress(FrameError):
            self._free()


def _step_name(step: Step) -> str:
    if isinstance(step, TransferStep):
        return f"copy {step.origin} to {step.device}"
    if isinstance(step, HostStep):
        ops = dict.fromkeys(node.op for node in step.graph.nodes if node.op != "constant")
        return f"numpy {' '.join(ops)}"
    return ""


def _origins(step: Step) -> tuple[int, ...]:
    if not isinstance(step, HostStep):
        return ()
    found = (node.origin for node in step.graph.nodes)
    return tuple(dict.fromkeys(origin for origin in found if origin is not None))


_STEPS: Mapping[type, Callable[[Run, Any], None]] = {
    RunStep: Run._run,
    TransferStep: Run._transfer,
    HostStep: Run._references,
    WriteBackStep: Run._later,
}


def _bound(signature: Signature, inputs: Sequence[Any]) -> tuple[list[Any], dict[str, int]]:
    """Return the inputs, arrays in native byte order, and the symbols; raise as `bind_inputs`."""
    arrays = [value.array if isinstance(value, Resident) else value for value in inputs]
    native, bindings = bind_inputs(signature, arrays)
    pairs = zip(inputs, native, strict=True)
    return [given if isinstance(given, Resident) else array for given, array in pairs], bindings
