"""The ops of frame: one record an op, and one function a record.

Every function appends a node to the active graph builder and returns its result (or results).
Operands are graph values; Python scalars are weak; numpy arrays become constants.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from frame.core.errors import NotFoundError
from frame.ir.graph import install_op_table
from frame.ops import api, registry
from frame.ops.registry import lookup, records, register, unregister

FAMILIES = (
    "elementwise",
    "compare",
    "constant",
    "reduction",
    "matmul",
    "shape",
    "parts",
    "gather",
    "indexing",
    "structural",
    "nn",
    "normalization",
    "losses",
    "conv",
    "control",
    "random",
    "custom_gradient",
)
"""The modules whose import registers the built-in ops."""

for _family in FAMILIES:
    importlib.import_module(f"frame.ops.{_family}")

DEFERRED: dict[str, tuple[str, ...]] = {
    "frame.ops.activations": (
        "celu", "glu", "hardsigmoid", "hardtanh", "heaviside_surrogate", "log_sigmoid", "mish",
        "prelu", "selu", "softsign",
    ),
    "frame.ops.group_norms": ("group_norm", "rms_norm"),
    "frame.ops.tables": ("embedding", "one_hot", "take_along_axis"),
    "frame.ops.criteria": (
        "binary_cross_entropy", "binary_cross_entropy_with_logits", "cosine_similarity",
        "huber_loss", "kl_div", "l1_loss", "nll_loss", "poisson_nll_loss", "smooth_l1_loss",
        "soft_margin_loss",
    ),
    "frame.ops.attention": ("scaled_dot_product_attention",),
    "frame.ops.fourier": ("fourier_rows", "irfft", "rfft"),
    "frame.ops.ordering": ("argsort", "cumsum", "sort", "topk"),
    "frame.ops.recurrences": ("linear_scan", "selective_scan"),
    "frame.ops.sampling": ("affine_sample",),
    "frame.ops.conv_gradients": ("conv2d_filter_grad",),
    "frame.ops.convolutions": ("conv1d", "conv_transpose2d", "global_avg_pool"),
}  # fmt: skip
"""The modules that are imported when one of their ops is first asked for, with their names."""

registry.seal_built_in()
registry.defer(DEFERRED)
install_op_table(api.Table())
_NAMES = frozenset(api.names())
for _family in _NAMES.intersection(FAMILIES):  # `matmul` is the function, not the module
    del globals()[_family]

__all__ = ("lookup", "records", "register", "unregister", *sorted(_NAMES))


def __getattr__(name: str) -> Callable[..., Any]:
    """Return the function of an op, made when it is first asked for.

    Ops that a user or a plug-in registered are looked up each time: they may be replaced.
    """
    try:
        function = None if name.startswith("_") else api.function(name)
    except NotFoundError:
        function = None
    if function is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in _NAMES:
        globals()[name] = function
    return function


def __dir__() -> list[str]:
    """Return the public names, ops that were registered later among them."""
    return sorted({*__all__, *api.names()})
