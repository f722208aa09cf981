"""Nested tuples, lists and dicts of values: taken apart into leaves, and put together again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

Rebuild = Callable[[Sequence[Any]], Any]


def flatten(tree: Any) -> tuple[list[Any], Rebuild]:
    """Return the leaves of a tree and the function that nests as many leaves the same way.

    Tuples (named ones too), lists and dicts nest; None is an empty tree; all else is a leaf. The
    leaves of a dict come in the order of its sorted keys.
    """
    if tree is None:
        return [], lambda leaves: None
    if isinstance(tree, dict):
        keys = sorted(tree)
        leaves, nest = flatten([tree[key] for key in keys])
        return leaves, lambda new: dict(zip(keys, nest(new), strict=True))
    if isinstance(tree, (tuple, list)):
        return _flatten_sequence(tree)
    return [tree], lambda leaves: leaves[0]


def _flatten_sequence(tree: tuple[Any, ...] | list[Any]) -> tuple[list[Any], Rebuild]:
    parts = [flatten(item) for item in tree]
    counts = [len(leaves) for leaves, _ in parts]

    def rebuild(new: Sequence[Any]) -> Any:
        items, start = [], 0
        for (_, nest), count in zip(parts, counts, strict=True):
            items.append(nest(new[start : start + count]))
            start += count
        make = getattr(type(tree), "_make", type(tree))
        return make(items)

    return [leaf for leaves, _ in parts for leaf in leaves], rebuild
