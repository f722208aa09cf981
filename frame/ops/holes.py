"""The file of holes: what an op lacks, and why. The contract test fails on any other hole.

An op without a gradient that acts as a constant (a comparison, a position) is no hole: its gradient
is zero. An op that a backend lacks and that has a decomposition is none either. What a backend
refuses only in some dtypes or attributes stands in its own table, with the reason in its message.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

GRADIENTS: Mapping[str, str] = MappingProxyType(
    {
        "while": "the number of its iterations is known only at run time, so what the backward "
        "pass reads can't be stored; use frame.ops.scan, whose length is fixed, and "
        "frame.ops.where or frame.ops.cond in its body to stop early",
        "group": "operator_fusion makes groups after the backward graph has been built",
    }
)
"""Op -> why it has no gradient; the record of the op takes its reason from here."""

_OPSET = "OpenVINO's opset has no op of the same meaning"

BACKENDS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "cpu": {},
        "intel_npu": {
            **dict.fromkeys(
                ("scan", "cond", "while"),
                "OpenVINO's TensorIterator gives wrong results for bodies that reshape their "
                "slices",
            ),
            **dict.fromkeys(
                ("floor_div", "mod"), "OpenVINO's floor_mod differs for infinities and integers"
            ),
            **dict.fromkeys(
                ("uniform", "normal"), "OpenVINO's random numbers are not frame's Philox counters"
            ),
            **dict.fromkeys(
                ("atan2", "expm1", "log1p", "log2", "trunc", "shift_left", "shift_right"), _OPSET
            ),
            "group": "OpenVINO fuses for itself, so it gets no groups",
            "relayout": "OpenVINO chooses its own layouts",
        },
    }
)
"""Backend -> op that it can't run -> why; the fallback runs such an op elsewhere."""
