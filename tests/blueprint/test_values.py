"""Blueprints as values: equality, printing, reading back, and what the factories refuse."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frame import blueprint as b
from frame.core.errors import InvalidArgumentError
from tests.blueprint import networks

ALL = [
    networks.mlp, networks.lenet5, networks.vgg16_bn, networks.resnet18, networks.resnet50,
    networks.resnet50_by_hand, networks.mobilenet_v2, networks.small_residual,
    networks.small_mobile, networks.small_flat,
]  # fmt: skip


def test_equal_programs_are_equal_values() -> None:
    assert b.conv(8, 3) == b.conv(8, 3, 1, 0) and hash(b.bn()) == hash(b.bn(0.1, 1e-5))
    assert b.seq(b.relu(), b.gap()) == b.seq([b.relu(), b.gap()]) != b.seq(b.gap(), b.relu())
    assert b.conv_bn_relu(8, 3, 1, 1) == b.cbr(8, 3, 1, 1)


def test_blueprints_are_immutable() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        b.relu().factory = "tanh_act"  # type: ignore[misc]


@pytest.mark.parametrize("make", ALL)
def test_the_text_of_a_network_reads_back(make) -> None:
    net = make()
    assert b.parse(repr(net)) == net


def test_repr_is_what_a_user_writes() -> None:
    assert repr(b.conv(64, 3)) == "conv(64, 3)" and repr(b.conv(64, 3, 1, 1)) == "conv(64, 3, 1, 1)"
    assert repr(b.bn()) == "bn()" and repr(b.bn(0.1, 1e-3)) == "bn(0.1, 0.001)"
    assert repr(b.repeat(b.relu(), 2)) == "repeat(relu(), 2)"
    net = b.seq(b.block(64, 256, b.BlockStyle.RESNET_1_3_1), b.gap_fc(10, True), *[b.relu()] * 4)
    assert repr(net) == (
        "seq(\n"
        "    block(64, 256, BlockStyle.RESNET_1_3_1),\n"
        "    gap_fc(10, True),\n"
        "    relu(),\n    relu(),\n    relu(),\n    relu(),\n)"
    )


def test_the_text_is_python_that_makes_the_value() -> None:
    names = {name: getattr(b, name) for name in b.__all__}
    for make in ALL:
        assert eval(repr(make()), {"__builtins__": {}}, names) == make()


LEAVES = st.one_of(
    st.builds(b.conv, st.integers(1, 9), st.integers(1, 5), st.integers(1, 3), st.integers(0, 2)),
    st.builds(b.conv_dw, st.integers(1, 5)),
    st.builds(b.bn, st.floats(0, 1), st.floats(1e-8, 1e-2)),
    st.builds(b.dropout, st.floats(0, 0.99)),
    st.builds(b.fc, st.integers(1, 9), st.booleans()),
    st.builds(b.mbconv, st.sampled_from([1, 6]), st.integers(1, 9), st.sampled_from([1, 2])),
    st.sampled_from([b.relu(), b.relu6(), b.gap(), b.flatten(), b.identity(), b.silu()]),
)
PROGRAMS = st.recursive(
    LEAVES,
    lambda part: st.one_of(
        st.lists(part, min_size=1, max_size=4).map(b.seq),
        st.builds(b.add2, part, part),
        st.builds(b.repeat, part, st.integers(1, 3)),
    ),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None)
@given(PROGRAMS)
def test_any_program_reads_back(net) -> None:
    assert b.parse(repr(net)) == net


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("__import__('os').system('true')", "line 1, column 1: expected a factory"),
        ("seq(conv(64, 3), (lambda: 1)())", "column 18: expected a factory"),
        ("seq(open(1))", "column 5: unknown factory 'open'; known: add2, avgpool"),
        ("seq(conv(64))", "column 5: conv: .*missing 1 required"),
        ("seq(\n  conv(0, 3))", "line 2, column 3: conv: out_channels must be an integer from 1"),
        ("seq(*[relu()])", "expected a factory"),
        ("seq(**{})", r"seq: \*\* is not understood"),
        ("block(64, BlockStyle.OTHER)", "received BlockStyle.OTHER"),
        ("conv(64, 'a')", "received 'a'"),
        ("conv(64, 3", "expected a program"),
        ("3", "expected calls of the factories"),
        ("(" * 5000, "expected a program"),
        ("seq(" * 500 + "relu()" + ")" * 500, "expected a program"),
    ],
)
def test_other_texts_are_refused_with_their_place(text: str, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        b.parse(text)


STYLE = b.BlockStyle


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: b.conv(0, 3), "conv: out_channels must be an integer from 1 to"),
        (lambda: b.conv(8, True), "conv: kernel must be an integer .* received True"),
        (lambda: b.conv(8, 3, 0), "conv: stride must be"),
        (lambda: b.conv(8, 3, 1, -1), "conv: padding must be an integer from 0"),
        (lambda: b.conv(8.0, 3), "received 8.0"),
        (lambda: b.conv(1 << 40, 3), "conv: out_channels"),
        (lambda: b.group_conv(8, 3, 3), "groups must divide out_channels 8, received 3"),
        (lambda: b.bn(1.5), r"bn: momentum must be a number in \[0, 1\], received 1.5"),
        (lambda: b.bn(0.1, 0), r"bn: eps must be a number in \(0, 1\]"),
        (lambda: b.bn(float("nan")), "bn: momentum"),
        (lambda: b.dropout(1.0), r"dropout: rate must be a number in \[0, 1\), received 1.0"),
        (lambda: b.fc(10, 1), "fc: bias must be True or False, received 1"),
        (lambda: b.flatten(2), "flatten: start_dim must be 1, received 2"),
        (lambda: b.maxpool(2, 2, 2), "maxpool: padding must be smaller than the window 2"),
        (lambda: b.avgpool(0, 1, 0), "avgpool: kernel"),
        (lambda: b.seq(), "seq: expected at least one layer, received none"),
        (lambda: b.seq([]), "seq: expected at least one layer"),
        (lambda: b.seq(b.relu(), 3), "seq: part 1 must be a layer such as .* received 3"),
        (lambda: b.seq(b.relu), r"seq: part 0 must be a layer .*; call the factory"),
        (lambda: b.add2(b.identity(), None), "add2: stem must be a layer"),
        (lambda: b.repeat(b.relu(), 0), "repeat: times must be an integer from 1"),
        (lambda: b.mbconv(4, 8, 1), "mbconv: expand must be 1 or 6, received 4"),
        (lambda: b.mbconv(6, 8, 3), "mbconv: stride must be 1 or 2, received 3"),
        (lambda: b.block(64, STYLE.RESNET_1_3_1), r"block\(out, style\) takes the styles RESNET_3"),
        (lambda: b.block(8, 64, STYLE.RESNET_3_3), r"takes the styles RESNET_1_3_1, RESNET_1_3_1_"),
        (lambda: b.block(8), "block: expected block.*received 1 arguments"),
        (lambda: b.block(8, "RESNET_3_3"), "received 'RESNET_3_3'"),
        (lambda: b.cbr(8, 3, 1, 1, eps=2), "cbr: eps"),
        (lambda: b.cbrp(8, 3, 1, 1, 2, 2, 2), "cbrp: pool_padding must be smaller"),
        (lambda: b.gap_fc(0, True), "gap_fc: out_features"),
    ],
)
def test_factories_refuse_wrong_arguments(make, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        make()
