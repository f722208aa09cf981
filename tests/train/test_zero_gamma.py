"""Zero gamma: which normalisations end a residual branch, found in the graph."""

from __future__ import annotations

import numpy as np
import pytest

import frame
from frame import nn
from frame.core.errors import InvalidArgumentError
from frame.nn.module import Module, build_graph
from frame.train import Initializer
from frame.train.zero_gamma import residual_gains
from tests.blueprint import networks
from tests.train.tasks import task


def gains(module: Module, *shape: object) -> list[str]:
    """Return the paths that are found for one input."""
    return residual_gains(build_graph(module, [frame.spec(shape)], "train"))


@pytest.mark.parametrize(
    ("network", "blocks", "ending"),
    [(networks.resnet18, 8, "bn2"), (networks.resnet50, 16, "bn3")],
    ids=["resnet18", "resnet50"],
)
def test_each_block_of_a_blueprint_has_one(network, blocks: int, ending: str) -> None:
    image = frame.spec(("batch", 64, 64, 3))
    module = network().module_for([image])
    found = gains(module, "batch", 64, 64, 3)
    assert len(found) == blocks and all(ending in name for name in found)
    named = [spec.name for spec in module.parameters() if "gamma" in spec.name]
    assert set(found) < set(named) and found == sorted(found, key=named.index)


def test_projections_and_stems_are_left_alone() -> None:
    by_hand = networks.resnet50_by_hand().module_for([frame.spec((2, 64, 64, 3))])
    found = gains(by_hand, 2, 64, 64, 3)
    # in the branch of a block: conv bn relu conv bn relu conv bn; the shortcut is the first child
    assert len(found) == 16 and all(name.endswith("7.gamma") for name in found)


@pytest.mark.parametrize("norm", [nn.BatchNorm1d(4), nn.LayerNorm(4), nn.RMSNorm(4)])
def test_every_normalisation_counts(norm: Module) -> None:
    branch = nn.Sequential([nn.Linear(4, 4), nn.ReLU(), norm, nn.Dropout(0.1)])
    assert gains(nn.Sequential("net", [nn.Linear(4, 4), nn.Residual(branch)]), 3, 4) == [
        "net.1.branch.2.gamma"
    ]


def test_a_plain_function_has_residual_sums_too() -> None:
    @nn.module(first=nn.LayerNorm(4), deep=nn.Linear(4, 4), last=nn.LayerNorm(4))
    def block(self, x):
        inner = self.last(self.deep(self.first(x)))
        return self.first(x) + inner, inner + self.first(inner)

    assert gains(block, 3, 4) == ["last.gamma", "first.gamma"]


def test_what_is_no_residual_sum() -> None:
    @nn.module(left=nn.LayerNorm(4), right=nn.LayerNorm(4), shift=nn.param((4,)))
    def merged(self, x):
        return self.left(x) + self.right(x), self.left(x) + self.shift

    assert gains(merged, 3, 4) == []
    post = nn.Sequential([nn.Residual(nn.Linear(4, 4)), nn.LayerNorm(4)])
    assert gains(post, 3, 4) == []


def test_the_gains_begin_with_zeros() -> None:
    branch = nn.Sequential([nn.Linear(6, 6), nn.BatchNorm1d(6)])
    net = nn.Sequential("net", [nn.Residual(branch), nn.Linear(6, 3)])
    start = Initializer(zero_gamma=True, linear=nn.normal(0, 1))
    values = start.values(net, 0, [frame.spec(("batch", 6))])
    assert set(values) == {"net.0.branch.1.gamma", "net.0.branch.0.weight", "net.1.weight"}
    assert not values["net.0.branch.1.gamma"].any() and values["net.0.branch.0.weight"].all()


def test_what_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="found no residual branch that ends in a norm"):
        task().initializer(Initializer(zero_gamma=True)).compile()
    with pytest.raises(InvalidArgumentError, match="zero_gamma to be True or False"):
        Initializer(zero_gamma=np.ones(1))  # type: ignore[arg-type]
