"""Plans as YAML: the round trip, and texts that must not be believed."""

from __future__ import annotations

import builtins

import pytest

from frame import blueprint as b
from frame.blueprint import ArchPlan, LayerKind
from frame.blueprint.layers import FUSED
from frame.core.errors import InvalidArgumentError, NotFoundError
from tests.blueprint import networks

SMALL = b.seq(b.cbr(4, 3, 1, 1, eps=1e-3), b.gap_fc(2, True))


@pytest.mark.parametrize("fuse", [False, True])
@pytest.mark.parametrize(
    "make", [networks.small_residual, networks.small_mobile, networks.small_flat]
)
def test_round_trip(make, fuse: bool) -> None:
    plan = make().plan((16, 16, 3), fuse=fuse)
    assert ArchPlan.from_yaml(plan.to_yaml()) == plan


def test_round_trip_of_features_and_classifiers() -> None:
    plan = networks.mlp().plan((784,), num_classes=10)
    assert len(plan.layers) == 8  # features need no flatten
    assert ArchPlan.from_yaml(plan.to_yaml()) == plan


def test_round_trip_of_every_kind() -> None:
    net = b.seq(
        b.channel_padding(), b.conv(8, 3), b.relu(), b.tanh_act(), b.silu(), b.relu6(),
        b.leaky_relu(), b.hardswish(), b.elu(), b.sigmoid(), b.avgpool(2, 1, 1), b.maxpool(2, 1, 0),
        b.bn(0.2, 1e-4), b.dropout(0.25), b.add2(b.identity(), b.conv(8, 1)), b.gap(),
        b.conv(3, 1), b.avgpool(2, 1, 1), b.flatten(), b.bn(), b.fc(4, False),
    )  # fmt: skip
    plan = net.plan((6, 6, 3), num_classes=4)
    assert {layer.kind for layer in plan.layers} == set(LayerKind) - FUSED
    read = ArchPlan.from_yaml(plan.to_yaml())
    assert read == plan and read.parameters == plan.parameters


TEXT = SMALL.plan((8, 8, 3), fuse=True).to_yaml()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("version: ArchPlan-2", "version: ArchPlan-1.0", "expected the version ArchPlan-2"),
        ("fused: true", "fused: 1", "the plan.fused: expected bool, received 1"),
        ("fused: true", "fused: true\nmore: 1", "expected the keys version, fused"),
        ("fused: true", "fused: true\nfused: false", "each key once, received 'fused' twice"),
        ("c: 3", "c: 0", "InputSpec: c must be an integer"),
        ("c: 3", "c: 4", r"layers\[0\]: expected CBR"),
        ("kind: GapFC", "kind: Eval", r"layers\[1\].kind: expected one of"),
        ("kind: GapFC", "kind: [1]", r"layers\[1\].kind: expected one of"),
        ("out_shape: [1, 1, 1, 2]", "out_shape: [1, 1, 1, 3]", r"layers\[1\]: expected GapFC"),
        ("out_shape: [1, 1, 1, 2]", "out_shape: [1, 1, 1]", r"expected \[1, height, width"),
        ("out_features: 2", "out_features: -2", "out_features must be an integer from 1"),
        ("out_features: 2", "out_features: '2'", "out_features: expected int, received '2'"),
        ("eps: 0.001", "eps: .nan", "eps must be a number"),
        ("path: 0.conv", "path: ../x", r"parts\[0\].path: expected letters"),
        ("groups: 1", "groups: 3", "groups must divide out_channels"),
        ("kind: CBR", "kind: &a CBR", None),
        ("name: cbr", "name: !!python/name:os.system x", "a tag or deeper nesting"),
        ("name: cbr", "name: !!python/object/apply:os.system [x]", "a tag or deeper nesting"),
        ("name: cbr", "name: !!binary aGk=", "a tag or deeper nesting"),
        ("name: cbr", "<<: {a: 1}", "a tag or deeper nesting"),
        ("in_shape: [1, 8, 8, 3]", "in_shape: &s [1, 8, 8, 3]\n  x: *s", "received an alias"),
    ],
)
def test_damaged_texts_are_refused_with_their_place(old: str, new: str, message) -> None:
    assert old in TEXT
    text = TEXT.replace(old, new, 1)
    if message is None:  # an anchor that nothing uses changes nothing
        assert ArchPlan.from_yaml(text) == ArchPlan.from_yaml(TEXT)
        return
    with pytest.raises(InvalidArgumentError, match=message):
        ArchPlan.from_yaml(text)


@pytest.mark.parametrize("text", ["", "[]", "3", "{", "a: b: c", "\x00", "--- 1\n--- 2\n", b"", 7])
def test_other_texts(text) -> None:
    with pytest.raises(InvalidArgumentError, match="expected"):
        ArchPlan.from_yaml(text)


def test_bombs_are_refused() -> None:
    # Expanded, the first would have 2 * 9**19 elements.
    layers = [f"l{k}: &l{k} [{', '.join([f'*l{k - 1}'] * 9)}]" for k in range(1, 20)]
    bombs = ["\n".join(["l0: &l0 [x, x]", *layers]), "[" * 100_000, "x" * (17 << 20)]
    for bomb in bombs:
        with pytest.raises(InvalidArgumentError):
            ArchPlan.from_yaml(bomb)


def test_unbalanced_markers_are_refused() -> None:
    text = b.add2(b.identity(), b.conv(3, 1)).plan((4, 4, 3)).to_yaml()
    for kind in ("Add2Start", "Add2ShortcutEnd", "Add2End"):
        with pytest.raises(InvalidArgumentError, match="balance|must"):
            ArchPlan.from_yaml(text.replace(f"kind: {kind}\n", "kind: Identity\n"))


def test_without_the_library_the_error_names_it(monkeypatch) -> None:
    usual = builtins.__import__

    def refuse(name, *rest):
        if name == "yaml":
            raise ImportError(name)
        return usual(name, *rest)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(NotFoundError, match="pip install pyyaml"):
        SMALL.plan((8, 8, 3)).to_yaml()
