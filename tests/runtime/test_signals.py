"""Ctrl-C during calls: it ends the call it came in, and what comes after is right."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

_SCRIPT = """
import os, signal, threading
import numpy as np, frame
from frame import nn
from frame.train import SGD

net = nn.Sequential("net", [nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 10)])
model = frame.compile(net, [frame.spec(("n", 128))], loss=nn.CrossEntropyLoss(),
                      targets=[frame.spec(("n",), "int64")], optimizer=SGD(momentum=0.9))
product = frame.compile(lambda a, b: frame.ops.tanh(a @ b), [("n", 300), (300, 300)])
step = np.random.default_rng(0)
x, a, b = (step.standard_normal(s).astype(np.float32) for s in ((64, 128), (500, 300), (300, 300)))
labels = np.arange(64) % 10

def train():
    model.train_step(x, labels, learning_rate=0.001)
    model(x[:5])

works = [train, lambda: product(a, b)]
wanted = product(a, b).copy()
train()
for turn in range(16):
    timer = threading.Timer(step.uniform(0.0005, 0.03), os.kill, (os.getpid(), signal.SIGINT))
    try:
        timer.start()
        while True:
            works[turn % 2]()
    except KeyboardInterrupt:
        timer.join()
    assert np.array_equal(product(a, b), wanted)
    train()
    assert np.isfinite(model(x)).all()
"""


def test_an_interrupt_during_calls_leaves_everything_usable(cache_folder: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-c", _SCRIPT],
        env={**os.environ, "PYTHONPATH": str(ROOT), "FRAME_NUM_THREADS": "2"},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr[-3000:]
