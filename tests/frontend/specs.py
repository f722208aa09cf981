"""Specs for tests: a sound one of each version, and edits of it."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).parents[2] / "examples" / "specs"
REMOVED = object()


def tiny_mlp() -> dict[str, Any]:
    """Return the example of version 0."""
    return json.loads((EXAMPLES / "tiny_mlp.json").read_text("utf-8"))


def edited(spec: dict[str, Any], *path: str | int, value: Any = REMOVED) -> dict[str, Any]:
    """Return a copy of a spec with the value at a path replaced, or removed."""
    made = copy.deepcopy(spec)
    *parents, last = path
    place: Any = made
    for key in parents:
        place = place[key]
    if value is REMOVED:
        del place[last]
    else:
        place[last] = value
    return made
