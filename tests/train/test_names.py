"""The table of names in docs/training-names.md: nothing is missing, and everything exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import frame
from frame import nn, ops, train

PAGE = Path(__file__).parents[2] / "docs" / "training-names.md"

METHODS = re.findall(
    r"\w+",
    """
    model loss label_smoothing initializer optimizer scheduler total_epochs num_classes
    validate_every early_stop_by_top1 use_sema sema_decay grad_clip tta
    freeze_first_layer_after progressive_crop progressive_resize metrics save_model_at_epoch
    save_best_model compile run dry_run compile_for_dry_run compile_h2d_only run_h2d_only
    use_gpu use_cpu amp use_tf32 manual_seed auto_seed reproducible local_batch_size
    global_batch_size train_resolution val_resolution input_resolution SGD Adam AdamW LARS
    PolynomialLR CosineAnnealingLR StepLR MultiStepLR ExponentialLR ConstantLR WSDLR
    CosineAnnealingWithWarmRestartsLR step_by_epoch step_by_batch conv fc bn fan scale
    nonlinearity alloc alloc_scalar finalize_memory add_graph run_iter transfer
    transfer_to_rank broadcast_from_rank0 fill zero randn init init_all fetch fetch_from_rank
    print_memory_plan print_computation_graphs
    """,
)
"""Every method of the task API that the BluePrint DSL comes with."""

ROOTS = {"task": train.DeepLearningTask, "train": train, "nn": nn, "ops": ops, "frame": frame}


def _rows() -> list[tuple[str, str, str]]:
    found = re.findall(r"^\| `(\w+)` \| (\S+) \|(.*)\|$", PAGE.read_text("utf-8"), re.MULTILINE)
    return [(name, here.strip("`"), note.strip()) for name, here, note in found]


def test_every_method_has_one_row() -> None:
    assert sorted(name for name, _, _ in _rows()) == sorted(METHODS)


@pytest.mark.parametrize(("name", "here", "note"), _rows())
def test_what_a_row_names_is_there(name: str, here: str, note: str) -> None:
    """A method of the task has the same name as there, where it has a row of its own."""
    if here == "none":
        assert len(note) > 5, "say why"
        return
    root, _, attribute = here.partition(".")
    assert hasattr(ROOTS[root], attribute)
    assert attribute == name or note or root != "task"


def test_a_method_that_is_here_under_its_name_is_that_row() -> None:
    public = {name for name in vars(train.DeepLearningTask) if not name.startswith("_")}
    rows = {name: here for name, here, _ in _rows()}
    assert {name: rows[name] for name in public & set(METHODS)} == {
        name: f"task.{name}" for name in public & set(METHODS)
    }
