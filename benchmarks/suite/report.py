"""The tables: Markdown and HTML from rows, with the geometric means of the groups."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks.suite.cases import GROUPS

Row = Mapping[str, Any]
COLUMNS = ("case", "frame ms", "best peer", "peer ms", "ratio", "GFLOP/s", "of peak", "GB/s")
WORST = 10


def geometric_mean(values: Iterable[float]) -> float | None:
    """Return the geometric mean of positive numbers, None of none."""
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs)) if logs else None


def ratios(rows: Sequence[Row], group: str = "") -> list[float]:
    """Return the ratios (best peer / frame) of a group, or of all rows."""
    return [row["ratio"] for row in rows if "ratio" in row and row["group"].startswith(group)]


def means(rows: Sequence[Row]) -> list[tuple[str, int, float]]:
    """Return (group, cases, geometric mean of the ratios), the whole suite last."""
    found = []
    for group in (*GROUPS, ""):
        chosen = ratios(rows, group)
        mean = geometric_mean(chosen)
        if mean is not None:
            found.append((group or "whole suite", len(chosen), mean))
    return found


def _number(value: Any, digits: int = 4) -> str:
    if value is None:
        return ""
    return f"{value:.{digits}g}" if isinstance(value, float) else str(value)


def cells(row: Row) -> tuple[str, ...]:
    """Return the cells of a case, in the order of COLUMNS."""
    own = row.get("ms", {}).get("frame")
    share = row.get("share_of_peak")
    name = row["case"]
    if "kernel_us" in row:
        name += f" (kernel {_number(row['kernel_us'], 3)} us)"
    return (
        name,
        _number(own),
        row.get("best", ""),
        _number(row.get("best_ms")),
        "" if "ratio" not in row else f"{row['ratio']:.2f}",
        _number(row.get("gflops"), 3),
        "" if share is None else f"{100 * share:.0f} %",
        _number(row.get("gb_per_s"), 3),
    )


def gaps(rows: Sequence[Row]) -> list[tuple[str, str, str]]:
    """Return (peer, reason, cases) of what a peer did not run; failures name the case."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        for kind in ("not_supported", "failed"):
            for peer, reason in row.get(kind, {}).items():
                text = reason if kind == "not_supported" else f"FAILED: {reason}"
                reasons.setdefault((peer, text), []).append(row["case"])
    return [(peer, why, ", ".join(cases)) for (peer, why), cases in sorted(reasons.items())]


def _sections(
    rows: Sequence[Row], absent: Mapping[str, str], notes: Mapping[str, Any]
) -> list[tuple[str, tuple[str, ...], list[tuple[str, ...]]]]:
    """Return (title, header, cells) of every table, for one number of threads."""
    sections: list[tuple[str, tuple[str, ...], list[tuple[str, ...]]]] = []
    averages = [(group, str(count), f"{mean:.3f}") for group, count, mean in means(rows)]
    sections.append(("Geometric means", ("group", "cases", "ratio"), averages))
    for group in GROUPS:
        chosen = [cells(row) for row in rows if row["group"] == group]
        if chosen:
            sections.append((group.capitalize(), COLUMNS, chosen))
    worst = sorted((row for row in rows if "ratio" in row), key=lambda row: row["ratio"])[:WORST]
    sections.append((f"The {len(worst)} worst", COLUMNS, [cells(row) for row in worst]))
    sections.append(("Not run", ("peer", "reason", "cases"), list(gaps(rows))))
    sections.append(("Absent cases", ("case", "reason"), list(absent.items())))
    sections.append(("How", ("peer", "run as"), _ways(rows)))
    machine = [(name, str(value)) for name, value in notes.items()]
    sections.append(("Machine", ("limit", "value"), machine))
    return [section for section in sections if section[2]]


def _ways(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """Return the ways in which each peer was run, each once."""
    found: dict[tuple[str, ...], None] = {}
    for row in rows:
        found.update(dict.fromkeys(row.get("how", {}).items()))
    return sorted(found)


def _by_threads(rows: Sequence[Row]) -> dict[int, list[Row]]:
    groups: dict[int, list[Row]] = {}
    for row in rows:
        groups.setdefault(row["threads"], []).append(row)
    return groups


def markdown(
    rows: Sequence[Row], absent: Mapping[str, str], notes: Mapping[int, Mapping[str, Any]]
) -> str:
    """Return the tables of rows as Markdown, one part for each number of threads."""
    lines = ["# frame beside its peers", ""]
    for threads, chosen in _by_threads(rows).items():
        lines += [f"## {threads} thread{'s' * (threads != 1)}", ""]
        for title, header, body in _sections(chosen, absent, notes.get(threads, {})):
            lines += [f"### {title}", "", _line(header), _line(["---"] * len(header))]
            lines += [*map(_line, body), ""]
    return "\n".join(lines)


def _line(entries: Iterable[str]) -> str:
    texts = (entry.replace("|", "\\|").replace("\n", " ") for entry in entries)
    return f"| {' | '.join(texts)} |"


STYLE = (
    "body{font:14px sans-serif;margin:2em}table{border-collapse:collapse;margin:1em 0}"
    "td,th{border:1px solid #ccc;padding:3px 8px;text-align:left}tr.slow{background:#fdd}"
)


def page(
    rows: Sequence[Row], absent: Mapping[str, str], notes: Mapping[int, Mapping[str, Any]]
) -> str:
    """Return the tables of rows as one HTML page; cases behind a peer are marked."""
    parts = [f"<!doctype html><meta charset='utf-8'><title>frame</title><style>{STYLE}</style>"]
    for threads, chosen in _by_threads(rows).items():
        parts.append(f"<h1>{threads} thread{'s' * (threads != 1)}</h1>")
        for title, header, body in _sections(chosen, absent, notes.get(threads, {})):
            parts.append(f"<h2>{html.escape(title)}</h2><table>{_html_row(header, 'th')}")
            parts += [_html_row(entries, "td", _is_slow(header, entries)) for entries in body]
            parts.append("</table>")
    return "\n".join(parts)


def _is_slow(header: Sequence[str], entries: Sequence[str]) -> bool:
    if "ratio" not in header:
        return False
    text = entries[header.index("ratio")]
    return bool(text) and float(text) < 1


def _html_row(entries: Sequence[str], tag: str, slow: bool = False) -> str:
    inner = "".join(f"<{tag}>{html.escape(entry)}</{tag}>" for entry in entries)
    return f"<tr class='slow'>{inner}</tr>" if slow else f"<tr>{inner}</tr>"
