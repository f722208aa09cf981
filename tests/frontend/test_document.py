"""JSON texts: limits, duplicate keys, and numbers that JSON does not have."""

from __future__ import annotations

import pytest

from frame.core.errors import InvalidArgumentError, NotFoundError
from frame.frontend import document
from frame.frontend.columns import Place


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1, "a": 2}', "a: expected each key once, received it twice"),
        ('{"a": [{"b": 1}, {"b": 1, "b": 1}]}', "a[1].b: expected each key once"),
        ('{"a b": {"c": 1, "c": 1}}', '["a b"].c: expected each key once'),
        ("[1]", "expected one JSON object, received [1]"),
        ("{", "line 1, column 2"),
        ("", "expected JSON"),
        ('{"a": 01}', "expected JSON"),
        ('{"a":' * 40 + "1" + "}" * 40, "at most 32 levels"),
        ("[" * 200_000, "at most 32 levels"),
    ],
)
def test_wrong_texts_are_refused_with_their_place(text: str, message: str) -> None:
    with pytest.raises(InvalidArgumentError) as error:
        document.parse_document(text)
    assert message in str(error.value)


def test_numbers_that_json_lacks_are_kept_as_their_text() -> None:
    found = document.parse_document('{"a": NaN, "b": -Infinity, "c": ' + "9" * 5000 + "}")
    assert all(isinstance(value, document.Odd) for value in found.values())
    assert repr(found["a"]) == "NaN"


def test_files_that_are_no_texts_are_refused(tmp_path) -> None:
    with pytest.raises(NotFoundError):
        document.read_document(tmp_path / "none.json")
    with pytest.raises(NotFoundError):
        document.read_document(tmp_path)
    (tmp_path / "bytes.json").write_bytes(b'{"a": "\xff"}')
    with pytest.raises(InvalidArgumentError, match="UTF-8"):
        document.read_document(tmp_path / "bytes.json")


def test_a_file_that_is_too_large_is_not_read(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(document, "MOST_BYTES", 3)
    (tmp_path / "long.json").write_text('{"a": 1}')
    with pytest.raises(InvalidArgumentError, match="at most 3 bytes, received 8 bytes"):
        document.read_document(tmp_path / "long.json")


def test_a_key_that_comes_twice_among_many_is_found_in_one_pass() -> None:
    class Key(str):
        looks = 0

        def __eq__(self, other: object) -> bool:
            Key.looks += 1
            return str(self) == other

        __hash__ = str.__hash__

    pairs = [(Key(f"k{i}"), i) for i in range(2000)] + [(Key("k7"), 0)]
    assert document._object(pairs).duplicates == ("k7",)
    assert Key.looks < 10 * len(pairs)


@pytest.mark.parametrize("text", ["a\0b", "\ud800", "ring", "ring/a.npy", "a" * 5000])
def test_names_that_no_file_has_are_refused(tmp_path, text: str) -> None:
    (tmp_path / "ring").symlink_to("ring")
    with pytest.raises((InvalidArgumentError, NotFoundError), match=r"data\.x"):
        Place(tmp_path).file(text, "data.x")


@pytest.mark.parametrize("text", ["a\0b", "\ud800", "ring/a.frame"])
def test_places_that_no_file_has_are_refused(tmp_path, text: str) -> None:
    (tmp_path / "ring").symlink_to("ring")
    with pytest.raises(InvalidArgumentError, match=r"training\.save: expected the name of a file"):
        Place(tmp_path).within(text, "training.save", "")
