"""Generated code for people: one text a stage, each made when somebody reads it."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterator, Mapping

MAX_CHARACTERS = 40_000
"""How many characters of a stage the notebook view shows."""

_STYLE = (
    "font-family:ui-monospace,monospace;font-size:12px;line-height:1.4;"
    "max-height:32em;overflow:auto;border:1px solid #8884;border-radius:4px;padding:8px;"
)


class Source(Mapping[str, str]):
    """Code by stage: `loop`, `llvm`, `assembly` on cpu. `print(source)` shows all of it.

    A text is made at its first use: assembly, above all, is compiled for it.
    """

    def __init__(self, title: str, makers: Mapping[str, Callable[[], str]]) -> None:
        self.title = title
        self._makers = dict(makers)
        self._texts: dict[str, str] = {}

    def __getitem__(self, stage: str) -> str:
        if stage not in self._texts:
            self._texts[stage] = self._makers[stage]()
        return self._texts[stage]

    def __contains__(self, stage: object) -> bool:
        return stage in self._makers  # without making it

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)

    def __str__(self) -> str:
        parts = [self.title]
        for stage, text in self.items():
            parts.append(f"--- {stage} ---\n{text.rstrip()}")
        return "\n\n".join(parts) + "\n"

    def __repr__(self) -> str:
        return f"<Source of {self.title}: {', '.join(self) or 'nothing'}>"

    def _repr_html_(self) -> str:
        stages = "".join(self._stage_html(stage, text) for stage, text in self.items())
        return f"<div><strong>{html.escape(self.title)}</strong>{stages}</div>"

    def _stage_html(self, stage: str, text: str) -> str:
        more = len(text) - MAX_CHARACTERS
        tail = f"\n... {more} more characters; source[{stage!r}] has all of them"
        shown = text if more <= 0 else text[:MAX_CHARACTERS] + tail
        return (
            f"<details><summary>{html.escape(stage)}, {len(text.splitlines())} lines</summary>"
            f'<pre style="{_STYLE}">{html.escape(shown)}</pre></details>'
        )


def joined(title: str, sources: list[Source]) -> Source:
    """Return the code of several parts as one, one part after the other in each stage."""
    stages = dict.fromkeys(stage for source in sources for stage in source)

    def maker(stage: str) -> Callable[[], str]:
        return lambda: "\n".join(source[stage] for source in sources if stage in source)

    return Source(title, {stage: maker(stage) for stage in stages})
