"""`frame emit`: a plan as a self-contained C99 project, for inference and for training."""

from __future__ import annotations

from frame.frontend.emission.project import emit_project

__all__ = ["emit_project"]
