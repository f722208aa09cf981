from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from frame.core import config
from frame.core.errors import InvalidArgumentError, NotFoundError


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in config.SETTINGS:
        monkeypatch.delenv(name, raising=False)


def test_defaults() -> None:
    assert config.get("FRAME_CACHE") == "1"
    assert config.get("FRAME_NUM_THREADS") is None
    assert config.get("FRAME_CPU") == "native"
    assert config.get("NO_COLOR") is False


def test_environment_and_override(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FRAME_NUM_THREADS", "3")
    assert config.get("FRAME_NUM_THREADS") == 3
    with config.override(FRAME_NUM_THREADS="5", FRAME_CACHE="readonly"):
        assert config.get("FRAME_NUM_THREADS") == 5
        with config.override(FRAME_NUM_THREADS=None):
            assert config.get("FRAME_NUM_THREADS") is None
        assert config.get("FRAME_NUM_THREADS") == 5
        assert config.get("FRAME_CACHE") == "readonly"
    assert config.get("FRAME_NUM_THREADS") == 3
    assert config.get("FRAME_CACHE") == "1"
    assert config.environment() == {"FRAME_NUM_THREADS": "3"}


@pytest.mark.parametrize(
    ("text", "size"), [("1024", 1024), ("2K", 2048), ("512MiB", 512 << 20), ("1g", 1 << 30)]
)
def test_sizes(text: str, size: int) -> None:
    with config.override(FRAME_CACHE_SIZE=text):
        assert config.get("FRAME_CACHE_SIZE") == size


BAD = [
    ("FRAME_NUM_THREADS", "0"),
    ("FRAME_NUM_THREADS", "-1"),
    ("FRAME_NUM_THREADS", "many"),
    ("FRAME_NUM_THREADS", "9" * 400),
    ("FRAME_CACHE", "yes"),
    ("FRAME_CACHE_SIZE", "B"),
    ("FRAME_CACHE_SIZE", "1.5G"),
    ("FRAME_DEBUG", "5"),
    ("FRAME_CPU", " "),
    ("FRAME_BACKEND", " "),
    ("FRAME_POOL_WAIT", "spin"),
    ("FRAME_GRAIN", "0"),
    ("FRAME_WINOGRAD", "yes"),
    ("FRAME_GRAIN", "\udcff"),
]
# Any text is a folder, or a wish for no colour; OMP_NUM_THREADS is not frame's own.
ANY_TEXT = {"FRAME_CACHE_DIR", "FRAME_DUMP_DIR", "NO_COLOR", "OMP_NUM_THREADS", "XDG_CACHE_HOME"}


def test_every_setting_refuses_a_text_or_takes_any() -> None:
    assert {name for name, _ in BAD} | ANY_TEXT == set(config.SETTINGS)
    for name in ANY_TEXT:
        with config.override(**{name: "\udcff \n'garbage"}):
            config.get(name)


def test_every_setting_is_read_somewhere() -> None:
    root = Path(config.__file__).resolve().parents[2]
    code = "".join(
        path.read_text("utf-8")
        for folder in ("frame", "codegen", "backends")
        for path in (root / folder).rglob("*.py")
        if path.name != "config.py"
    )
    if not (root / "codegen").is_dir():
        pytest.skip("an installed frame has its packages elsewhere")
    assert [name for name in config.SETTINGS if f'"{name}"' not in code] == []


@pytest.mark.parametrize(("name", "text"), BAD)
def test_a_bad_text_names_the_variable(
    monkeypatch: pytest.MonkeyPatch, name: str, text: str
) -> None:
    monkeypatch.setenv(name, text)
    with pytest.raises(InvalidArgumentError, match=f"{name}: expected .*received"):
        config.get(name)
    with pytest.raises(InvalidArgumentError, match=name), config.override(**{name: text}):
        pass


@pytest.mark.parametrize(("text", "count"), [("4", 4), ("4,2", 4), ("", None), ("x", None)])
def test_openmp_list_form(monkeypatch: pytest.MonkeyPatch, text: str, count: int | None) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", text)
    assert config.get("OMP_NUM_THREADS") == count


def test_unknown_variables_warn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "_warned", set())
    monkeypatch.setenv("FRAME_CASHE", "0")
    with pytest.warns(UserWarning, match="FRAME_CASHE .* did you mean FRAME_CACHE"):
        config.get("FRAME_CACHE")
    monkeypatch.setenv("FRAME_FOO", "0")
    with pytest.warns(UserWarning, match="FRAME_FOO is not a setting of frame$"):
        config.get("FRAME_CACHE")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        config.get("FRAME_CACHE")


def test_unknown_setting() -> None:
    with pytest.raises(NotFoundError, match="no setting 'FRAME_X'"):
        config.get("FRAME_X")
