"""Every issue that users of such systems hit, and that this machine can show, has a test."""

from __future__ import annotations

import re

from tests.project import checkout

# The public issues that concern the CPU, the cache, threads, compile time or fusion. A test is
# named after each, `test_known_29_...`; the numbers left out are of accelerators and other systems.
ROWS = {
    1: "a compiler is looked for on the PATH (pytorch#157458)",
    2: "paths with spaces and letters of any language (pytorch#154127)",
    3: "compilation is disabled where g++ is absent (bitsandbytes PR#1251)",
    4: "float16 without its instructions (mlx#3080)",
    6: "a truncated cache file fails for ever (numba#10434)",
    7: "writers and readers of one cache entry (numba#9348)",
    8: "many processes and eviction (jax#22718)",
    10: "the cache is not atomic (mlir-aie#2621)",
    11: "an edited helper is not seen (numba#1833)",
    12: "an edited compiler is not seen (pytorch#122891)",
    14: "the cache of one host never hits (jax#38445)",
    15: "another CPU than the host's (numba#9582)",
    16: "no writable cache folder (numba#7248)",
    17: "a folder of another user (triton#518)",
    18: "the cache runs code that was planted (tilelang#2817)",
    19: "fork, then a parallel kernel (numba#7872)",
    21: "two threads call parallel code (numba#8563)",
    22: "a pool of the host's size in a container (onnxruntime#29510)",
    24: "an idle pool spins (onnxruntime#26847)",
    26: "memory of compiled code is never freed (numba#6707)",
    27: "the SLP vectoriser takes minutes (llvm-project#58705)",
    28: "a warm start costs seconds (pytorch#172547)",
    29: "every batch size compiles anew (TensorRT-LLM#6142)",
    30: "two instances compile twice (pytorch#121369)",
    31: "a copy of a flipped self is fused wrongly (pytorch#162410)",
    34: "strided slices and a stack (pytorch#185702)",
    36: "a buffer is reused whose view is live (pytorch#100314)",
    38: "a repeated call differs from the first (tinygrad#16192)",
    43: "a full disk (openvino#24619)",
}
NAME = re.compile(r"def test_known_((?:\d+_(?:and_)?)+)")


def test_every_row_has_a_test_that_is_named_after_it() -> None:
    found: set[int] = set()
    for path in (checkout.ROOT / "tests").rglob("test_*.py"):
        for numbers in NAME.findall(path.read_text("utf-8")):
            found.update(int(number) for number in re.findall(r"\d+", numbers))
    assert sorted(set(ROWS) - found) == []
