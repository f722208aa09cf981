"""Which ops anchor a group: the kind that fusion gives it and that a schedule is named by."""

from __future__ import annotations

from collections.abc import Mapping

ANCHORS: Mapping[str, str] = {
    "matmul": "contraction",
    "conv2d": "convolution",
    "conv2d_filter_grad": "conv2d_filter_grad",
    "max_pool2d": "pool",
    "avg_pool2d": "pool",
    "max_pool2d_grad": "pool_grad",
    "avg_pool2d_grad": "pool_grad",
    "gather": "gather",
    "scatter_add": "scatter",
    "concat": "concat",
    "affine_sample": "affine_sample",
}
"""Op -> anchor kind. An op that is missing here anchors a group under its own name."""

EPILOGUES = frozenset(
    {
        "contraction",
        "convolution",
        "conv2d_filter_grad",
        "pool",
        "pool_grad",
        "gather",
        "affine_sample",
    }
)
"""Anchor kinds whose first result may be followed by elementwise nodes in the same group."""
