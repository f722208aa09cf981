"""Checkpoints: everything that a run needs to go on as if it had never stopped.

A checkpoint is two files, `step-N.safetensors` (weights, running statistics, optimizer state,
averages) and then `step-N.json` (counters, position, records, and the digest of the first). Both
are written beside their names and renamed, so the second exists only if the first is whole.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from frame.core.dataclass import dataclass
from frame.core.errors import InvalidArgumentError
from frame.core.files import atomic_write, remove_stale
from frame.core.logs import Logger
from frame.interop.weights import dump_safetensors, parse_safetensors

_LOG = Logger("frame.train")
FORMAT = 1
_NAME = re.compile(r"step-(\d{10})\.json")


@dataclass(frozen=True, slots=True)
class CheckpointRule:
    """Where checkpoints go, how often, and how many stay beside the best one."""

    folder: str
    every_epochs: int = 1
    every_steps: int | None = None
    keep: int = 3


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint that was read: the arrays of the store by name, and the state of the run."""

    step: int
    arrays: Mapping[str, np.ndarray]
    state: Mapping[str, Any]


class CheckpointFolder:
    """The checkpoints of one run.

    Raises:
        InvalidArgumentError: the path is there and no folder.
    """

    def __init__(self, rule: CheckpointRule) -> None:
        self.rule = rule
        self._folder = Path(rule.folder)
        if self._folder.exists() and not self._folder.is_dir():
            raise InvalidArgumentError(f"checkpoints: {rule.folder} is a file, expected a folder")

    def write(
        self,
        step: int,
        arrays: Mapping[str, np.ndarray],
        state: Mapping[str, Any],
        best: int | None,
    ) -> None:
        """Write a checkpoint, then remove those that are not wanted any more.

        `best` is the step of the checkpoint that stays in any case.

        Raises:
            OSError: the file system refuses; every older checkpoint is still there.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        data = dump_safetensors(arrays)
        weights, facts = self._paths(step)
        digest = hashlib.sha256(data).hexdigest()
        text = json.dumps({"format": FORMAT, "step": step, "sha256": digest, "state": state})
        try:
            atomic_write(weights, lambda file: file.write(data))
            atomic_write(facts, lambda file: file.write(text.encode()))
        except OSError:
            if not facts.exists():
                weights.unlink(missing_ok=True)
            raise
        self._prune(best)

    def latest(self) -> Checkpoint | None:
        """Return the newest checkpoint that is whole; one that is not is passed over, with a
        warning."""
        for step in reversed(self.steps()):
            try:
                return self.read(step)
            except (InvalidArgumentError, OSError) as error:
                _LOG.warning("passing over a checkpoint: %s", error)
        return None

    def read(self, step: int) -> Checkpoint:
        """Return a checkpoint.

        Raises:
            InvalidArgumentError: it is damaged, or of another version.
            OSError: a file is missing or can't be read.
        """
        weights, facts = self._paths(step)
        try:
            found = json.loads(facts.read_text("utf-8"))
            digest, state, version = found["sha256"], dict(found["state"]), found["format"]
        except (ValueError, KeyError, TypeError) as error:
            raise InvalidArgumentError(f"{facts} is damaged: {error}") from None
        if version != FORMAT:
            raise InvalidArgumentError(f"{facts}: expected format {FORMAT}, received {version!r}")
        data = weights.read_bytes()
        if hashlib.sha256(data).hexdigest() != digest:
            raise InvalidArgumentError(f"{weights} is damaged: its digest is another one")
        arrays = parse_safetensors(data, str(weights))
        return Checkpoint(step, {n: np.array(a) for n, a in arrays.items()}, state)

    def steps(self) -> list[int]:
        """Return the steps that have a checkpoint, rising."""
        if not self._folder.is_dir():
            return []
        found = (_NAME.fullmatch(name) for name in os.listdir(self._folder))
        return sorted(int(match[1]) for match in found if match)

    def _paths(self, step: int) -> tuple[Path, Path]:
        name = f"step-{step:010d}"
        return self._folder / f"{name}.safetensors", self._folder / f"{name}.json"

    def _prune(self, best: int | None) -> None:
        steps = self.steps()
        kept = {*steps[-self.rule.keep :], best}
        for step in steps:
            if step not in kept:
                for path in reversed(self._paths(step)):  # first the one that makes it count
                    path.unlink(missing_ok=True)
        for path in self._folder.glob("step-*.safetensors"):
            if not path.with_suffix(".json").exists():  # its writer was killed between the two
                path.unlink(missing_ok=True)
        remove_stale(self._folder)
