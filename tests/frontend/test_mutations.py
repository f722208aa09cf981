"""Specs with random faults: each is accepted, or refused with an error of frame's own."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

import pytest

from frame import frontend
from frame.core.errors import FrameError, InternalError
from tests.frontend.specs import EXAMPLES, tiny_mlp
from tests.frontend.test_emission import rich
from tests.frontend.test_version1 import spec

VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 2, 3, 1.5, -0.0, 1e30, 2**31, 2**40, 2**63, -(2**63)),
    *("", "a", "x", "target", "relu", "Linear", "add", "concat", "é\n", "[0]", "b.0", "head"),
    *("float64", "int64", "bool", "float16", [], [1], [1, 2], [1, 2, 3], [[1]], {}),
    *({"kind": "zeros"}, {"kind": "Linear", "in_features": 3, "out_features": 3}),
    {"kind": "add", "inputs": ["a", "b"], "name": "q"},
]


def places(value: Any, path: tuple = ()) -> list[tuple]:
    keys = (
        value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    )
    below = [place for key in keys for place in places(value[key], (*path, key))]
    return [*([path] if path else []), *below]


def at(document: Any, path: tuple) -> Any:
    for key in path:
        document = document[key]
    return document


def mutated(document: dict, source: random.Random) -> dict:
    made = copy.deepcopy(document)
    for _ in range(source.choice([1, 1, 2, 3])):
        every = places(made)
        path, other = source.choice(every), source.choice(every)
        parent, draw = at(made, path[:-1]), source.random()
        if draw < 0.15:
            del parent[path[-1]]
        elif draw < 0.3:
            parent[path[-1]] = copy.deepcopy(at(made, other))
        else:
            parent[path[-1]] = copy.deepcopy(source.choice(VALUES))
    return made


@pytest.mark.parametrize("seed", range(4))
def test_random_faults_are_refused_and_never_crash(seed: int) -> None:
    source = random.Random(seed)
    network = json.loads((EXAMPLES / "residual_cnn.json").read_text("utf-8"))
    found = {"accepted": 0, "refused": 0}
    for _ in range(150):
        made = mutated(source.choice([tiny_mlp(), spec(), rich(), network]), source)
        try:
            frontend.check_data(frontend.loads(json.dumps(made)))
            found["accepted"] += 1
        except InternalError:
            raise
        except FrameError as error:
            assert ": " in str(error), "the path of the field"
            found["refused"] += 1
    assert found["refused"] > 100
