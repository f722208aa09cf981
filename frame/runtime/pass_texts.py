"""Pass lists as texts, for files: what `make_pipeline` reads again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from frame.compiler.pass_manager import pass_text
from frame.compiler.pipeline import Passes, Pipeline, find_pass, make_pipeline
from frame.core.errors import FrameError, InvalidArgumentError


def pass_texts(passes: Passes) -> list[str] | None:
    """Return edits of the pass list as texts; None for the standard list.

    Raises:
        InvalidArgumentError: a pass is an object of the user that no name leads to.
    """
    if passes is None or isinstance(passes, Pipeline):
        if passes is None or passes.text() == make_pipeline(None).text():
            return None
        raise InvalidArgumentError(
            "a .frame file holds a list of passes as texts, and this model was compiled with a "
            "Pipeline of its own: give frame.compile the edits as texts, such as "
            "'after canonicalize: my_pass{option=1}'"
        )
    items: Sequence[Any] = (passes,) if isinstance(passes, str) else passes
    return [item if isinstance(item, str) else _text(item) for item in items]


def _text(pass_: Any) -> str:
    text = pass_text(pass_)
    try:
        again = make_pipeline((text,)).passes
    except FrameError:
        again = ()
    if pass_ in again and find_pass(pass_.name) is type(pass_):
        return text
    raise InvalidArgumentError(
        f"a .frame file holds no code: the pass {pass_.name!r} must be an entry point of the group "
        "frame.passes, and its options numbers and texts"
    )
