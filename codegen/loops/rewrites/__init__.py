"""Checked rewrites: each returns new statements or raises ScheduleError, never changes its input.

A rewrite of a loop takes the For and returns the block that takes its place; `at(kernel, loop,
rewrite)` puts it there.
"""

from frame.codegen.loops.rewrites.common import (
    ScheduleError,
    at,
    find_loop,
    replace,
    substitute,
    with_body,
)
from frame.codegen.loops.rewrites.parallelise import parallel_extent, parallel_loop, parallelise
from frame.codegen.loops.rewrites.predicate import predicate
from frame.codegen.loops.rewrites.simplify import simplify
from frame.codegen.loops.rewrites.stage import stage
from frame.codegen.loops.rewrites.tile import reorder, tile
from frame.codegen.loops.rewrites.unroll import unroll
from frame.codegen.loops.rewrites.vectorise import vectorise

__all__ = [
    "ScheduleError",
    "at",
    "find_loop",
    "parallel_extent",
    "parallel_loop",
    "parallelise",
    "predicate",
    "reorder",
    "replace",
    "simplify",
    "stage",
    "substitute",
    "tile",
    "unroll",
    "vectorise",
    "with_body",
]
