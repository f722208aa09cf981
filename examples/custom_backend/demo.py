"""Compile for the recorder and show what its device did.

pip install --no-deps ./examples/custom_backend
python examples/custom_backend/demo.py
"""

from __future__ import annotations

import numpy as np

import frame
from frame import ops
from frame.runtime.backends import backend


def main() -> None:
    """Run one function on the device, and print the operations."""
    model = frame.compile(
        lambda x: ops.tanh(x * 2.0), inputs=[frame.spec(("batch", 3))], backend="recorder"
    )
    print(model(np.zeros((2, 3), np.float32)))
    print("operations:", *(operation.name for operation in backend("recorder").log))


if __name__ == "__main__":
    main()
