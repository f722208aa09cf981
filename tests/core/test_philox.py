from __future__ import annotations

import numpy as np
import pytest

from frame.core.dtypes import DType, bfloat16, float16, float32, float64, int32
from frame.core.errors import InvalidArgumentError
from frame.core.philox import normal, permutation, philox4x32, random_bits, uniform

FLOATS = [float64, float32, float16, bfloat16]

# The known-answer vectors for philox4x32 with 10 rounds that Random123 publishes (kat_vectors).
KNOWN_ANSWERS = [
    (
        "00000000 00000000 00000000 00000000",
        "00000000 00000000",
        "6627e8d5 e169c58d bc57ac4c 9b00dbd8",
    ),
    (
        "ffffffff ffffffff ffffffff ffffffff",
        "ffffffff ffffffff",
        "408f276d 41c83b0e a20bc7c6 6d5451fd",
    ),
    (
        "243f6a88 85a308d3 13198a2e 03707344",
        "a4093822 299f31d0",
        "d16cfe09 94fdcceb 5001e420 24126ea1",
    ),
]


def words(text: str) -> list[int]:
    return [int(word, 16) for word in text.split()]


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_ANSWERS)
def test_published_known_answers(counter: str, key: str, expected: str) -> None:
    assert philox4x32(words(counter), words(key)).tolist() == words(expected)


def test_blocks_are_vectorised() -> None:
    counters = np.array([words(row[0]) for row in KNOWN_ANSWERS], np.uint32)
    keys = np.array([words(row[1]) for row in KNOWN_ANSWERS], np.uint32)
    result = philox4x32(counters[:, None, :], keys[None, :, :])
    assert result.shape == (3, 3, 4) and result.dtype == np.uint32
    for i in range(3):
        assert result[i, i].tolist() == words(KNOWN_ANSWERS[i][2])
        assert (result[i, 1] == philox4x32(counters[i], keys[1])).all()


def test_bits_follow_the_published_layout() -> None:
    seed, stream, iteration = 0x0123456789ABCDEF, 7, 9
    result = random_bits(seed, stream, 5, 9, iteration)
    for position in range(9):
        block, word = divmod(5 + position, 4)
        expected = philox4x32([block, 0, iteration, stream], [0x89ABCDEF, 0x01234567])[word]
        assert result[position] == expected
    far = random_bits(1, 0, 2**34 + 1, 1)
    assert far[0] == philox4x32([0, 1, 0, 0], [1, 0])[1]


@pytest.mark.parametrize("make", [uniform, normal])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_any_part_equals_that_part_of_the_whole(make: object, dtype: DType) -> None:
    whole = make(3, 1, 21, dtype, iteration=2)
    assert whole.dtype == dtype.numpy and whole.shape == (21,)
    for offset in range(6):
        for count in (0, 1, 2, 7):
            part = make(3, 1, count, dtype, offset=offset, iteration=2)
            assert part.tobytes() == whole[offset : offset + count].tobytes()


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_distributions(dtype: DType) -> None:
    numbers = uniform(1, 0, 40000, dtype).astype(np.float64)
    assert numbers.min() >= 0 and numbers.max() < 1
    assert abs(numbers.mean() - 0.5) < 0.01
    assert abs(numbers.var() - 1 / 12) < 0.003
    numbers = normal(1, 0, 40000, dtype).astype(np.float64)
    assert np.isfinite(numbers).all()
    assert abs(numbers.mean()) < 0.02 and abs(numbers.std() - 1) < 0.02
    assert abs((numbers**3).mean()) < 0.1 and abs((numbers**4).mean() - 3) < 0.2
    assert abs(np.corrcoef(numbers[0::2], numbers[1::2])[0, 1]) < 0.03


def test_formulas() -> None:
    bits = random_bits(5, 2, 0, 4)
    assert (uniform(5, 2, 4) == (bits >> 8) * 2.0**-24).all()
    assert uniform(5, 2, 1, float64)[0] == ((int(bits[0]) >> 5 << 26) + (int(bits[1]) >> 6)) / 2**53
    u1, u2 = ((bits[0] >> 8) + 1) * 2.0**-24, (bits[1] >> 8) * 2.0**-24
    radius = np.sqrt(-2 * np.log(u1))
    pair = [radius * np.cos(2 * np.pi * u2), radius * np.sin(2 * np.pi * u2)]
    assert (normal(5, 2, 2) == np.float32(pair)).all()


def test_streams_iterations_and_seeds_differ() -> None:
    draws = [
        random_bits(*a, 0, 64, b) for a in ((0, 0), (0, 1), (1, 0), (1 << 32, 0)) for b in (0, 1)
    ]
    assert len({draw.tobytes() for draw in draws}) == len(draws)


def test_permutation() -> None:
    order = permutation(7, 0, 1000)
    assert order.dtype == np.int64 and sorted(order) == list(range(1000))
    assert (order == permutation(7, 0, 1000)).all()
    assert (order != permutation(7, 0, 1000, iteration=1)).any()
    assert permutation(7, 0, 0).shape == (0,)
    first = np.bincount([permutation(seed, 0, 5)[0] for seed in range(2000)], minlength=5)
    assert (abs(first - 400) < 90).all()


def test_bad_arguments() -> None:
    for seed, stream, offset, count in (
        *((-1, 0, 0, 1), (2**64, 0, 0, 1), (0, 2**32, 0, 1), (0, -1, 0, 1)),
        *((0, 0, -1, 1), (0, 0, 0, -1), (0.5, 0, 0, 1)),
    ):
        with pytest.raises(InvalidArgumentError, match="expected a"):
            random_bits(seed, stream, offset, count)
    with pytest.raises(InvalidArgumentError, match="received int32"):
        uniform(0, 0, 1, int32)
    with pytest.raises(InvalidArgumentError, match="received int32"):
        normal(0, 0, 1, int32)
    with pytest.raises(InvalidArgumentError, match="shape"):
        philox4x32([0, 0, 0], [0, 0])
