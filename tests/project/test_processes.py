"""The main job starts no process but frame's own, seen by an audit hook in every process."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from frame.backends.cpu import objects
from tests.project import checkout

# sitecustomize is imported by each new interpreter, so the hook also sits in the second process
# that the main job starts.
HOOK = """
import json, os, sys
LOG = os.environ["AUDIT_LOG"]
STARTS = ("subprocess.", "os.exec", "os.fork", "os.posix_spawn", "os.spawn", "os.system",
          "os.startfile", "pty.spawn")
def hook(event, arguments):
    if event.startswith(STARTS):
        words = arguments[1] if event == "subprocess.Popen" else arguments
        with open(LOG, "a") as log:
            log.write(json.dumps([event, [str(word) for word in words or ()]]) + "\\n")
sys.addaudithook(hook)
"""
MAIN_JOB = ("-m", "frame", "demo", "--quick")


def _audited(tmp_path: Path, *arguments: str) -> list[list]:
    (tmp_path / "sitecustomize.py").write_text(HOOK)
    log = tmp_path / "log"
    log.touch()
    path = f"{tmp_path}:{checkout.ROOT}"
    result = checkout.run_python(
        *arguments,
        folder=tmp_path,
        path=path,
        AUDIT_LOG=str(log),
        FRAME_CACHE_DIR=str(tmp_path / "cache"),
    )
    assert result.returncode == 0, result.stderr
    return [json.loads(line) for line in log.read_text().splitlines()]


def _is_own(event: list) -> bool:
    kind, words = event
    own = (["-m", "frame"], ["-I", "-c", objects.START])
    return kind == "subprocess.Popen" and any(
        words[: 1 + len(start)] == [sys.executable, *start] for start in own
    )


def test_the_main_job_starts_only_frame(tmp_path: Path) -> None:
    events = _audited(tmp_path, *MAIN_JOB)
    assert [event for event in events if not _is_own(event)] == []
    assert events, "the demo shows a second process, which the hook must have seen"


@pytest.mark.parametrize(
    "code",
    [
        "import subprocess; subprocess.run(['true'])",
        "import os; os.system('true')",
        "import os\nif os.fork() == 0: os._exit(0)",
        "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'import os; os.fork()'])",
    ],
    ids=["subprocess", "system", "fork", "in the second process"],
)  # fmt: skip
def test_the_hook_sees_a_started_process(tmp_path: Path, code: str) -> None:
    assert [event for event in _audited(tmp_path, "-c", code) if not _is_own(event)]
