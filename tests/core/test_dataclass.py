"""frame's cheap frozen dataclasses behave like those of the standard library."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from collections.abc import Callable
from functools import cached_property
from typing import Any, ClassVar

import pytest

from frame.core.dataclass import dataclass


def _point(decorate: Callable[..., Any], **options: bool) -> Any:
    @decorate(frozen=True, **options)
    class Point:
        """A point."""

        x: int
        y: int = 2
        tags: list[str] = dataclasses.field(default_factory=list)
        note: str = dataclasses.field(default="", compare=False, repr=False)
        total: int = dataclasses.field(init=False, default=7)
        late: int = dataclasses.field(init=False)

        def __post_init__(self) -> None:
            if self.x < 0:
                raise ValueError("negative")
            object.__setattr__(self, "late", self.x + self.y)

    return Point


@dataclass(frozen=True, slots=True)
class Pair:
    """Two numbers."""

    first: int
    second: int = 0


@pytest.mark.parametrize("slots", [False, True])
@pytest.mark.parametrize("eq", [False, True])
@pytest.mark.parametrize("shown", [False, True])
def test_objects_are_those_of_the_standard_library(slots: bool, eq: bool, shown: bool) -> None:
    options = {"slots": slots, "eq": eq, "repr": shown}
    own, standard = _point(dataclass, **options), _point(dataclasses.dataclass, **options)
    made, expected = own(1, tags=["a"]), standard(1, tags=["a"])
    assert dataclasses.asdict(made) == dataclasses.asdict(expected)
    assert (repr(made) == repr(expected)) is shown
    assert (made == own(1, tags=["a"], note="n")) is eq and made != own(2) and made != expected
    assert dataclasses.asdict(dataclasses.replace(made, y=5))["late"] == 6
    assert str(inspect.signature(own)) == str(inspect.signature(standard))
    assert own.__match_args__ == standard.__match_args__ and own.__doc__ == "A point."
    assert hasattr(made, "__dict__") is not slots
    assert own(1).tags is not own(1).tags
    for case in (own, standard):
        with pytest.raises(TypeError, match=r"Point.__init__\(\) missing 1 required"):
            case()
        with pytest.raises(ValueError, match="negative"):
            case(-1)


def test_the_hash_is_that_of_the_compared_fields() -> None:
    assert hash(Pair(1, 2)) == hash((1, 2)) and len({Pair(1), Pair(1, 0), Pair(2)}) == 2
    one = _point(dataclass)
    with pytest.raises(TypeError, match="unhashable"):
        hash(one(1))  # of a list


@pytest.mark.parametrize("slots", [False, True])
def test_frozen_means_frozen(slots: bool) -> None:
    made = _point(dataclass, slots=slots)(1)
    for name in ("x", "other"):
        with pytest.raises(dataclasses.FrozenInstanceError, match=f"assign to field '{name}'"):
            setattr(made, name, 3)
    with pytest.raises(dataclasses.FrozenInstanceError, match="delete field 'x'"):
        del made.x
    assert made.x == 1


def test_copies_and_pickles_are_equal() -> None:
    pair = Pair(3, 4)
    for other in (copy.copy(pair), copy.deepcopy(pair), pickle.loads(pickle.dumps(pair))):
        assert other == pair and other is not pair


def test_methods_of_the_class_itself_stay() -> None:
    @dataclass(frozen=True, slots=True)
    class Own:
        value: int

        def __init__(self) -> None:
            object.__setattr__(self, "value", 9)

        def __eq__(self, other: object) -> bool:
            return True

        def __repr__(self) -> str:
            return "own"

    assert Own() == 3 and repr(Own()) == "own" and hash(Own()) == hash((9,))

    @dataclass(frozen=True)
    class Cached:
        value: int

        def __hash__(self) -> int:
            return 5

        @cached_property
        def double(self) -> int:
            return 2 * self.value

    assert Cached(4).double == 8 and hash(Cached(4)) == 5


@pytest.mark.parametrize("derive", [dataclass, dataclasses.dataclass])
def test_classes_inherit(derive: Callable[..., Any]) -> None:
    @derive(frozen=True, slots=True)
    class Triple(Pair):
        third: int = 5

    made = Triple(1, third=2)
    assert repr(made).endswith("Triple(first=1, second=0, third=2)") and made == Triple(1, 0, 2)
    assert made != Pair(1, 0) and pickle.loads(pickle.dumps(Pair(1))) == Pair(1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.first = 2  # type: ignore[misc]

    class Plain(Pair):
        def __init__(self) -> None:
            super().__init__(1)
            self.more = 2

    assert Plain().more == 2 and Plain().first == 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        Plain().first = 2  # type: ignore[misc]


def test_methods_are_compiled_when_they_are_looked_up() -> None:
    made = _point(dataclass, slots=True)
    late = [name for name in ("__init__", "__eq__", "__hash__") if not callable(vars(made)[name])]
    assert late == ["__init__", "__eq__", "__hash__"]
    for _ in range(100):  # the first few objects are made without
        made(1)
    assert callable(vars(made)["__init__"]) and not callable(vars(made)["__eq__"])
    assert made.__eq__.__qualname__.endswith("Point.__eq__")


CALLS = [
    ((), {}),
    ((1,), {}),
    ((1, 3, ["t"], "n"), {}),
    ((1,), {"y": 9, "note": "n"}),
    ((), {"x": 1, "tags": []}),
    ((-1,), {}),
    ((1, 2), {"y": 3}),
    ((1,), {"z": 3}),
    ((1,), {"total": 3}),
    ((1,), {"late": 3}),
    ((1, 2, [], "n", 5), {}),
    ((), {"y": 3}),
]


def _outcome(made: Any, positional: tuple[Any, ...], named: dict[str, Any]) -> object:
    try:
        return dataclasses.asdict(made(*positional, **named))
    except (TypeError, ValueError) as error:
        return str(error)


@pytest.mark.parametrize("slots", [False, True])
@pytest.mark.parametrize(("positional", "named"), CALLS)
def test_a_class_is_called_alike_before_and_after_it_is_compiled(
    slots: bool, positional: tuple[Any, ...], named: dict[str, Any]
) -> None:
    own, standard = _point(dataclass, slots=slots), _point(dataclasses.dataclass, slots=slots)
    expected = _outcome(standard, positional, named)
    expected = expected.replace("_point.<locals>.", "") if isinstance(expected, str) else expected
    before = _outcome(own, positional, named)
    inspect.signature(own)
    assert callable(vars(own)["__init__"])
    after = _outcome(own, positional, named)
    before, after = (
        found.replace("_point.<locals>.", "") if isinstance(found, str) else found
        for found in (before, after)
    )
    assert before == after == expected


def test_annotations_keep_their_text() -> None:
    own, standard = _point(dataclass, slots=True), _point(dataclasses.dataclass, slots=True)
    assert own.__annotations__ == standard.__annotations__ and own.__annotations__["x"] == "int"
    types = [field.type for field in dataclasses.fields(own)]
    assert types == [field.type for field in dataclasses.fields(standard)]


def test_a_class_variable_is_no_field() -> None:
    @dataclass(frozen=True)
    class Counted:
        shared: ClassVar[int] = 3
        own: int = 1

    assert [field.name for field in dataclasses.fields(Counted)] == ["own"]
    assert Counted(2).shared == 3


def test_what_is_not_plain_is_left_to_the_standard_library() -> None:
    @dataclass(slots=True)
    class Counter:
        count: int = 0

    counter = Counter()
    counter.count += 1
    assert counter == Counter(1)
    with pytest.raises(TypeError, match="keyword-only"):

        @dataclass(frozen=True)
        class Named:
            name: str = dataclasses.field(kw_only=True)
