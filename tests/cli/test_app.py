"""The command line itself: help, exit codes, and errors as one readable block."""

from __future__ import annotations

import json
import re

import click
import pytest

from frame.cli import app, main, output, report
from frame.core import config
from frame.core.errors import InternalError, InvalidArgumentError


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch):
    """Add a command `fail` that raises the exception it is given."""

    def install(error: BaseException) -> None:
        @click.command("fail")
        def command() -> None:
            raise error

        monkeypatch.setattr(
            app._Commands,
            "get_command",
            lambda self, ctx, name: command if name == "fail" else None,
        )

    return install


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in app.COMMANDS)
    assert "Exit codes" in text


@pytest.mark.parametrize("name", app.COMMANDS)
def test_help_of_each_command_teaches_by_example(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([name, "--help"]) == 0
    text = capsys.readouterr().out
    assert "Examples:" in text and f"frame {name}" in text


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("frame ")


def test_without_a_command_the_help_is_shown_and_the_exit_code_is_2(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and "Commands:" in captured.err


@pytest.mark.parametrize("words", [["no-such-command"], ["doctor", "--no-such-option"]])
def test_a_wrong_command_line_is_2_and_says_where_the_help_is(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ") and "--help" in captured.err


def test_a_users_mistake_is_one_block_without_a_traceback(failing, capsys) -> None:
    failing(InvalidArgumentError("expected a matrix\nreceived a scalar"))
    assert main(["fail"]) == 1
    assert capsys.readouterr().err == "error: expected a matrix\n  received a scalar\n"


def test_frame_debug_adds_the_traceback(failing, capsys) -> None:
    failing(InvalidArgumentError("expected a matrix"))
    with config.override(FRAME_DEBUG="1"):
        assert main(["fail"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_a_missing_file_names_the_file(failing, capsys) -> None:
    failing(FileNotFoundError(2, "No such file or directory", "model.frame"))
    assert main(["fail"]) == 1
    assert capsys.readouterr().err == "error: No such file or directory: model.frame\n"


@pytest.mark.parametrize("error", [InternalError("broken"), ZeroDivisionError("by zero")])
def test_a_bug_of_frame_is_called_one(error: Exception, failing, capsys) -> None:
    failing(error)
    assert main(["fail"]) == 1
    text = capsys.readouterr().err
    assert type(error).__name__ in text and "bug in frame" in text and "Traceback" not in text


def test_an_interrupt_is_130(failing) -> None:
    failing(KeyboardInterrupt())
    assert main(["fail"]) == 130


def test_warnings_and_log_records_are_blocks(capsys: pytest.CaptureFixture[str]) -> None:
    import logging
    import warnings

    report.route_warnings()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = report._show_warning
        warnings.warn("the cache is not writable", stacklevel=1)
    logging.getLogger("frame.runtime").warning("fell back to %s", "cpu")
    assert capsys.readouterr().err == (
        "warning: the cache is not writable\nwarning: fell back to cpu\n"
    )


def test_no_color_is_honoured() -> None:
    assert output.colour_wanted() is None
    with config.override(NO_COLOR="1"):
        assert output.colour_wanted() is False


def test_table_aligns_its_columns() -> None:
    text = click.unstyle(output.table(("name", "size"), [("a", 1), ("longer", 22)]))
    assert text == "name    size\na       1\nlonger  22"


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (1 << 40, "1.0 TiB")]
)
def test_bytes_text(count: int, text: str) -> None:
    assert output.bytes_text(count) == text


def test_backends_and_doctor_print_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["backends", "--json"]) == 0
    for entry in json.loads(capsys.readouterr().out):
        assert {"name", "state", "devices", "problem"} <= set(entry)
    assert main(["doctor", "--json"]) in (0, 1)
    found = json.loads(capsys.readouterr().out)
    assert {"frame", "packages", "processor", "settings", "problems"} <= set(found)


def test_doctor_is_readable(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["doctor"])
    text = capsys.readouterr().out
    assert "processor" in text and "llvmlite" in text
    assert (code == 0) == text.rstrip().endswith("none")


def test_a_backend_without_a_device_says_what_it_lacks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from frame.backends.intel_npu import sdk

    monkeypatch.setattr(sdk, "installed_version", lambda: "missing")
    assert main(["backends"]) == 0
    text = capsys.readouterr().out
    assert re.search(r"^intel_npu +no device +-$", text, re.MULTILINE)
    assert "intel_npu: the backend intel_npu needs the openvino wheel" in text


def test_a_failing_plug_in_is_reported_with_its_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from frame.runtime import backends

    def factory():
        raise RuntimeError("the driver is too old")

    backends.register_backend("broken_for_a_test", factory)
    try:
        assert main(["backends"]) == 0
        text = capsys.readouterr().out
        assert "broken_for_a_test' (registered by this process) does not load" in text
        assert "RuntimeError: the driver is too old" in text
        [row] = [line for line in text.splitlines() if line.startswith("broken_for_a_test ")]
        assert "unusable" in row
    finally:
        backends.unregister_backend("broken_for_a_test")


@pytest.mark.parametrize(
    ("words", "path"),
    [
        (["inspect", "model.frame", "--source"], "frame inspect"),
        (["run", "--sourcery"], "frame run"),
        (["cache", "info", "more"], "frame cache info"),
        (["--verbose"], "frame"),
    ],
)
def test_a_wrong_option_leads_to_the_help_of_its_command(words, path, capsys) -> None:
    assert main(words) == 2
    assert f"next: {path} --help shows" in capsys.readouterr().err
