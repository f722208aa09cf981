"""Options that all tests share: which slow tests run, and which seed chooses them."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SHARES = 24


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("frame")
    group.addoption(
        "--slow",
        choices=("none", "part", "all"),
        default="part",
        help=f"which tests marked slow run; part is one of {SHARES} shares (default: part)",
    )
    group.addoption(
        "--slow-seed",
        default=None,
        metavar="TEXT",
        help="chooses the share of --slow part (default: the commit, so each commit runs another)",
    )
    group.addoption(
        "--update-golden",
        action="store_true",
        help="write the golden files anew instead of comparing with them; then read the diff",
    )


def pytest_configure(config: pytest.Config) -> None:
    # The workers of pytest-xdist get the options of their parent, so all of them choose alike.
    if config.option.slow_seed is None:
        config.option.slow_seed = _commit()


def pytest_report_header(config: pytest.Config) -> str:
    return f"slow tests: {config.option.slow}; repeat with --slow-seed {config.option.slow_seed}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    skip = pytest.mark.skip(reason="slow, and not in this run's share (--slow all runs it)")
    for item in items:
        if item.get_closest_marker("slow") and not _runs(item.nodeid, config):
            item.add_marker(skip)


def _runs(name: str, config: pytest.Config) -> bool:
    if config.option.slow != "part":
        return config.option.slow == "all"
    digest = hashlib.sha256(f"{config.option.slow_seed} {name}".encode()).digest()
    return digest[0] % SHARES == 0


def _commit() -> str:
    command = ["git", "-C", str(ROOT), "rev-parse", "--short=12", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "no-commit"


@pytest.fixture(scope="session", autouse=True)
def _every_loop_module_is_verified() -> Iterator[None]:
    """Verify what any test lowers, after all rewrites: a schedule that breaks a rule fails."""
    from frame.codegen import lowering
    from frame.codegen.loops.verifier import verify_module

    plain = lowering.lower_piece

    def verified(*arguments: object) -> lowering.Lowered:
        lowered = plain(*arguments)  # type: ignore[arg-type]
        verify_module(lowered.module, lowered=True)
        return lowered

    lowering.lower_piece = verified
    yield
    lowering.lower_piece = plain


@pytest.fixture(autouse=True)
def _no_op_stays_registered() -> Iterator[None]:
    """Fail the test that leaves an op behind, not another that meets it later."""
    from frame.ops.registry import foreign_records

    yield
    left = [record.name for record in foreign_records()]
    assert not left, f"ops stay registered after the test: {left}"
