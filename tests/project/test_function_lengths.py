"""The report of function lengths counts what it says it counts."""

from __future__ import annotations

from pathlib import Path

from tests.project import checkout, function_lengths

SOURCE = '''
@decorator
def outer(a,
          b):
    """A docstring
    of two lines."""
    # a comment

    def inner():
        return a
    return inner
'''


def test_lengths_leave_out_what_is_not_code(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(checkout, "ROOT", tmp_path)
    path = tmp_path / "module.py"
    path.write_text(SOURCE)
    found = function_lengths.lengths(checkout.Module("module", path, is_package=False))
    assert {each.name: each.lines for each in found} == {"outer": 3, "inner": 2}
