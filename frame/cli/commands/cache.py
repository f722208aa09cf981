"""`frame cache info|clear|verify`: the compile cache on disk."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from frame.cli.output import bytes_text, facts, print_json

if TYPE_CHECKING:
    from frame.runtime.cache import Cache

EPILOG = """\b
Examples:
  frame cache info         where the cache is, and how full
  frame cache verify       check every file; exit code 1 when one is damaged
  frame cache clear        remove every file; the next compile starts anew

\b
Settings:
  FRAME_CACHE_DIR          another folder
  FRAME_CACHE=0|readonly   no cache, or one that is never written
  FRAME_CACHE_SIZE=2G      above this size the oldest files go"""


@click.group("cache", epilog=EPILOG)
def command() -> None:
    """Show, check or empty the compile cache.

    The cache holds machine code and what is needed to run it again. It never holds weights, and
    nothing is lost with it but the time to compile.
    """


# kind of a file of the cache -> what several of them are called
_KINDS = {
    "manifest": "manifests",
    "artifact": "artifacts",
    "choice": "tuned schedules",
    "sources": "digests of sources",
}

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


@command.command("info")
@json_option
def info(as_json: bool) -> None:
    """Show where the cache is, and how full."""
    data = cache_facts()
    if as_json:
        print_json(data)
    else:
        click.echo(facts(cache_rows(data), indent=0))


@command.command("verify", short_help="Check the digest of every file.")
@json_option
def verify(as_json: bool) -> int:
    """Check the digest of every file; the exit code is 1 when one is damaged."""
    sound, damaged = _cache().verify()
    if as_json:
        print_json({"sound": sound, "damaged": [str(path) for path in damaged]})
    else:
        click.echo(f"{sound} sound, {len(damaged)} damaged")
        for path in damaged:
            click.echo(f"  damaged: {path}")
        if damaged:
            click.echo("a damaged file is never used; it is made again, or: frame cache clear")
    return 1 if damaged else 0


@command.command("clear")
@json_option
def clear(as_json: bool) -> None:
    """Remove every file of the cache."""
    removed = _cache().clear()
    if as_json:
        print_json({"removed": removed})
    else:
        click.echo(f"removed {removed} files")


def _cache() -> Cache:
    from frame.runtime.cache import default_cache

    return default_cache()


def cache_rows(data: dict[str, Any]) -> dict[str, Any]:
    """Return the facts of the cache as rows for people."""
    if "files" not in data:
        return data
    kinds = ", ".join(f"{name} {data[name]}" for name in _KINDS.values())
    rows = {name: value for name, value in data.items() if name not in _KINDS.values()}
    rows |= {"files": f"{data['files']}" + (f": {kinds}" if data["files"] else "")}
    return rows | {name: bytes_text(data[name]) for name in ("size", "limit")}


def cache_facts() -> dict[str, Any]:
    """Return where the cache is and how full; sizes in bytes."""
    from frame.core import config
    from frame.runtime.cache import default_directory

    cache = _cache()
    entries = list(cache.entries())
    counts = {name: sum(entry.kind == kind for entry in entries) for kind, name in _KINDS.items()}
    return {
        "folder": str(cache.root or default_directory()),
        "mode": {"0": "off", "1": "on"}.get(config.get("FRAME_CACHE"), "read only"),
        "on disk": "yes" if cache.root is not None else "no, in memory only",
        "files": len(entries),
        **counts,
        "size": sum(entry.size for entry in entries),
        "limit": cache.limit,
    }
