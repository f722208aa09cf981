"""The page of public names says what the code says."""

from __future__ import annotations

from tests.project import api_page


def test_the_page_is_fresh() -> None:
    written = api_page.PATH.read_text("utf-8")
    assert written == api_page.generate(), f"docs/api.md is stale: run {api_page.COMMAND}"


def test_the_page_has_what_users_look_for() -> None:
    rows = api_page.generate().splitlines()
    for name, words in (
        ("compile(model, inputs=(), *, backend=None", "Compile a model to native code"),
        ("Linear(in_features, out_features, bias=True, *, name=''", "x @ weight + bias"),
        ("train_step(*inputs, **hyperparameters)", "one training step"),
        ("FRAME_CACHE_DIR", "folder of the compile cache"),
    ):
        found = [row for row in rows if row.startswith(f"| `{name}") and words in row]
        assert len(found) == 1, name


def test_each_row_is_one_line_of_a_table_of_two_columns() -> None:
    rows = [row for row in api_page.generate().splitlines() if row.startswith("| `")]
    assert len(rows) > 400
    for row in rows:
        assert row.replace("\\|", "").count("|") == 3 and row.endswith(" |"), row
        assert "`  |" not in row and "` |  |" not in row, f"{row} says nothing"
