"""JSON texts: limits, duplicate keys, and numbers that JSON does not have."""

from __future__ import annotations

import pytest

from frame.core.errors import InvalidArgumentError, NotFoundError
from frame.frontend import document


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
