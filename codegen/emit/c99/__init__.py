"""Loop IR to portable C99: vectors are arrays of lanes, launches run serially."""

from frame.codegen.emit.c99.module import emit_module

__all__ = ["emit_module"]
