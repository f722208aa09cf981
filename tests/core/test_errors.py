from __future__ import annotations

import pickle

import pytest

from frame.core import errors

PAIRS = [
    (errors.InvalidArgumentError, ValueError),
    (errors.NotFoundError, KeyError),
    (errors.UnimplementedError, NotImplementedError),
    (errors.OutOfMemoryError, MemoryError),
    (errors.DeviceError, RuntimeError),
    (errors.InternalError, RuntimeError),
    (errors.AlreadyExistsError, RuntimeError),
]


@pytest.mark.parametrize(("error", "builtin"), PAIRS)
def test_each_error_is_the_builtin_and_shows_its_plain_message(
    error: type[errors.FrameError], builtin: type[Exception]
) -> None:
    raised = error("no 'x' here")
    assert isinstance(raised, builtin) and isinstance(raised, errors.FrameError)
    assert str(raised) == raised.message == "no 'x' here"
    assert str(pickle.loads(pickle.dumps(raised))) == str(raised)


def test_unimplemented_error_carries_its_nodes() -> None:
    raised = errors.UnimplementedError("fft is not available", nodes=[3, 5])
    assert raised.nodes == (3, 5)
    assert pickle.loads(pickle.dumps(raised)).nodes == (3, 5)
    assert errors.UnimplementedError("x").nodes == ()
