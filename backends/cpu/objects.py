"""The objects of an artefact, made side by side: here, and in processes of frame's own.

LLVM's binding lets one thread of a process at a time into LLVM. Where an artefact has several
modules, as many processes as there are threads to compute with take them from one list, this
process among them. A worker that can't be started or that is killed costs time and nothing else:
this process makes what is left.

A request is a line of JSON (the size of the text, the target, the symbols of other objects), then
the text; an answer is a line of JSON (the size, the error if there is one), then the object.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from frame.backends.cpu.llvm import compile_ir
from frame.backends.cpu.threads import default_threads
from frame.core.errors import InternalError
from frame.core.logs import Logger
from frame.core.targets import TargetDescription

if TYPE_CHECKING:
    from subprocess import Popen

    from frame.codegen.emit.llvm import ModulePart

_LOGGER = Logger("frame.backends.cpu")
START = (
    "import json, sys; sys.path[:] = json.loads(sys.stdin.buffer.readline()); "
    "from frame.backends.cpu.objects import serve; serve()"
)
_GRACE = 3.0  # seconds in which a worker that LLVM aborts has ended
_SECONDS = 60.0  # how long the last module of a worker is waited for before this process makes it


def compile_parts(parts: Sequence[ModulePart], target: TargetDescription) -> tuple[bytes, ...]:
    """Return the object of each module.

    Raises:
        InternalError: as `compile_ir`, or LLVM ended a process over a module.
    """
    work = _Work(parts, target)
    workers = [_Worker(work) for _ in range(_worker_count(len(parts)))]
    try:
        for worker in workers:
            worker.begin()
        work.compile_here()
        for worker in workers:
            worker.wait(_SECONDS)
    finally:
        for worker in workers:
            worker.kill()
    work.compile_here()  # what a worker has given back
    return work.objects()


def _worker_count(parts: int) -> int:
    """Return how many processes to start: none where `sys.executable` may be another program."""
    python = os.path.basename(sys.executable or "").startswith("python")
    return min(parts, default_threads()) - 1 if python and not hasattr(sys, "frozen") else 0


class _Work:
    """The modules that wait, longest first, and the objects that are made."""

    def __init__(self, parts: Sequence[ModulePart], target: TargetDescription) -> None:
        self.parts, self.target = parts, target
        self.waiting = deque(sorted(range(len(parts)), key=lambda index: -len(parts[index].text)))
        self.made: dict[int, bytes] = {}
        self.error: str | None = None

    def taken(self) -> Iterator[int]:
        """Yield modules that nobody has taken, until none is left or one has failed."""
        while self.error is None:
            try:
                yield self.waiting.popleft()
            except IndexError:
                return

    def compile_here(self) -> None:
        """Make objects in this process while modules wait."""
        for index in self.taken():
            part = self.parts[index]
            self.made[index] = compile_ir(part.text, self.target, others=part.others)

    def objects(self) -> tuple[bytes, ...]:
        """Return all objects, or raise what went wrong."""
        if self.error is not None:
            raise InternalError(self.error)
        return tuple(self.made[index] for index in range(len(self.parts)))


class _Worker(threading.Thread):
    """A thread of this process that waits for a process which compiles."""

    def __init__(self, work: _Work) -> None:
        super().__init__(name="frame-compile", daemon=True)
        self.work = work
        self.process: Popen[bytes] | None = None
        self.killed = False

    def begin(self) -> None:
        """Start the thread, if the system allows one more."""
        try:
            self.start()
        except RuntimeError as error:
            _LOGGER.info("no thread for a worker: %s", error)

    def wait(self, seconds: float | None = None) -> None:
        """Wait for the thread, if it was started."""
        if self.ident is not None:
            self.join(seconds)

    def run(self) -> None:
        """Start the process and let it make objects while modules wait."""
        try:
            with _started() as self.process:
                for index in self.work.taken():
                    self._make(self.process, index)
        except (OSError, RuntimeError) as error:  # no right to start processes, or it was killed
            _LOGGER.info("no worker for compiling: %s", error)

    def kill(self) -> None:
        """End the process, if it still runs, and the thread with it."""
        self.killed = True
        if self.process is not None:
            self.process.kill()
        self.wait()

    def _make(self, process: Popen[bytes], index: int) -> None:
        try:
            answer, data = _ask(process, self.work.parts[index], self.work.target)
        except (OSError, ValueError) as error:
            if _end_of(process) == -signal.SIGABRT and not self.killed:
                self.work.error = "LLVM ended a process over a module; its reason is on stderr"
            self.work.waiting.append(index)
            raise ChildProcessError(f"it has ended with {process.returncode}") from error
        if answer["error"] is not None:
            self.work.error = answer["error"]
        self.work.made[index] = data


def _end_of(process: Popen[bytes]) -> int:
    """Return what a worker that has stopped answering ends with; one that lives on is killed."""
    from subprocess import TimeoutExpired

    try:
        return process.wait(_GRACE)
    except TimeoutExpired:
        process.kill()
        return process.wait()


def _started() -> Popen[bytes]:
    import subprocess

    process = subprocess.Popen(
        [sys.executable, "-I", "-c", START], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    _send(process.stdin, list(map(os.path.abspath, sys.path)))
    return process


def _ask(
    process: Popen[bytes], part: ModulePart, target: TargetDescription
) -> tuple[dict[str, Any], bytes]:
    """Return a worker's answer; raise OSError or ValueError if it ends too early."""
    text = part.text.encode()
    data = {field.name: getattr(target, field.name) for field in fields(target)}
    data["intrinsics"] = sorted(target.intrinsics)
    _send(process.stdin, {"size": len(text), "target": data, "others": sorted(part.others)}, text)
    return _receive(process.stdout)


def _send(pipe: Any, header: Any, body: bytes = b"") -> None:
    pipe.write(json.dumps(header).encode() + b"\n")
    pipe.write(body)
    pipe.flush()


def _receive(pipe: Any) -> tuple[dict[str, Any], bytes]:
    header = json.loads(pipe.readline())
    size = header.get("size", -1) if isinstance(header, dict) else -1
    body = pipe.read(size) if size >= 0 else b""
    if len(body) != size:
        raise ValueError(f"expected {size} bytes, received {len(body)}")
    return header, body


def serve() -> None:
    """Be a worker: answer the requests of the standard input until it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that asks hears of it and ends us
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    with suppress(OSError, ValueError):  # the other process has gone
        while True:
            header, body = _receive(sys.stdin.buffer)
            error, data = _answer(header, body.decode())
            _send(answers, {"size": len(data), "error": error}, data)


def _answer(header: dict[str, Any], text: str) -> tuple[str | None, bytes]:
    known = header["target"]
    known["features"] = tuple(known["features"])
    known["intrinsics"] = frozenset(known["intrinsics"])
    others = frozenset(header["others"])
    try:
        return None, compile_ir(text, TargetDescription(**known), others=others)
    except InternalError as error:
        return str(error), b""
