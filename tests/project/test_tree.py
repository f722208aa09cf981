"""The tree itself: sizes, texts, and a README whose commands are the ones that CI runs."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tests.project import checkout

READMES = ("README.md", "README.zh-CN.md")
COMMAND = re.compile(r"^```(?:sh|bash|console)\n(.*?)^```", re.MULTILINE | re.DOTALL)
INSTALL_BY_NAME = re.compile(r"pip3? install +(?:-\S+ +)*[\"']?frame(?![\w-])")

# A path of somebody's machine has no place in a file that others read.
MACHINE_PATH = re.compile(r"(?<![\w.:/])/(?:home|root|Users|work|opt|mnt|srv)/[\w.]")

FILES = checkout.text_files()


def _commands(name: str) -> list[str]:
    return [block.strip() for block in COMMAND.findall((checkout.ROOT / name).read_text("utf-8"))]


@pytest.mark.parametrize("name", READMES)
def test_readme_has_exactly_two_commands(name: str) -> None:
    commands = _commands(name)
    assert len(commands) == 2
    assert all("\n" not in command for command in commands), "each command is one line"


@pytest.mark.parametrize("name", READMES)
def test_the_first_command_runs_the_main_job_and_the_second_the_tests(name: str) -> None:
    first, second = _commands(name)
    assert first.endswith("frame demo")
    assert '".[test]"' in second and "pytest" in second


def test_both_languages_give_the_same_commands() -> None:
    assert _commands(READMES[0]) == _commands(READMES[1])


def test_both_languages_give_the_same_numbers() -> None:
    rows = [
        [re.findall(r"\d+(?:[.,]\d+)*", line) for line in text.splitlines() if line.startswith("|")]
        for text in ((checkout.ROOT / name).read_text("utf-8") for name in READMES)
    ]
    assert rows[0] == rows[1]


def test_ci_runs_the_command_of_the_readme() -> None:
    script = (checkout.ROOT / ".ci" / "run").read_text("utf-8")
    assert "README.md" in script and "pytest" not in script, "the test command stands in README.md"


def test_nobody_is_told_to_install_a_foreign_package() -> None:
    wrong = [path.name for path in FILES if INSTALL_BY_NAME.search(path.read_text("utf-8"))]
    assert wrong == []


def test_the_pattern_of_the_foreign_package_works() -> None:
    assert INSTALL_BY_NAME.search("pip install " + "frame[cuda]")
    assert INSTALL_BY_NAME.search('pip install -q "' + 'frame"')
    assert not INSTALL_BY_NAME.search("pip install frame-compiler")


def test_source_files_are_shorter_than_800_lines() -> None:
    lengths = {path: len(path.read_text("utf-8").splitlines()) for path in FILES}
    assert [path.name for path, n in lengths.items() if path.suffix == ".py" and n >= 800] == []


def test_no_file_names_a_path_of_one_machine() -> None:
    wrong = [
        f"{path.relative_to(checkout.ROOT)}:{number}: {line.strip()}"
        for path in FILES
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if MACHINE_PATH.search(line)
    ]
    assert wrong == []


def test_no_open_ends_in_the_source() -> None:
    marks = re.compile(r"\b(?:TO" + "DO|FIX" + "ME|XX" + r"X)\b")
    assert [path.name for path in FILES if marks.search(path.read_text("utf-8"))] == []


def test_checkout_finder_recognises_the_project_file() -> None:
    text = (checkout.ROOT / "pyproject.toml").read_text("utf-8")
    assert 'name = "frame-compiler"' in text
    assert tomllib.loads(text)["project"]["name"] == "frame-compiler"


@pytest.mark.parametrize("name", ["LICENSE", "CONTRIBUTING.md", "CHANGELOG.md", *READMES])
def test_the_usual_pages_exist(name: str) -> None:
    assert (checkout.ROOT / name).stat().st_size > 300


def test_the_licence_is_apache_with_our_holder() -> None:
    text = (checkout.ROOT / "LICENSE").read_text("utf-8")
    assert "Version 2.0, January 2004" in text and "Copyright the frame authors" in text


def test_decisions_are_numbered_without_a_gap() -> None:
    pages: list[Path] = sorted((checkout.ROOT / "docs" / "decisions").glob("*.md"))
    assert [int(page.name[:4]) for page in pages] == list(range(1, len(pages) + 1))
    for number, page in enumerate(pages, 1):
        title, _, status = page.read_text("utf-8").splitlines()[:3]
        assert title.startswith(f"# {number}. ") and status.startswith("Status: "), page.name
