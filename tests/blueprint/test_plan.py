"""Expansion and normalisation: shapes, names, paths, fusion, and errors that name the place."""

from __future__ import annotations

import pytest

from frame import blueprint as b
from frame.blueprint import ArchPlan, InputSpec, LayerKind
from frame.core.errors import InvalidArgumentError
from tests.blueprint import networks

STYLE = b.BlockStyle


def kinds(plan: ArchPlan) -> list[str]:
    return [str(layer.kind) for layer in plan.layers]


def plan(*layers, shape=(8, 8, 3), **options) -> ArchPlan:
    return b.seq(*layers).plan(shape, **options)


# --- shapes and paths -----------------------------------------------------------------------------


def test_windows_floor() -> None:
    sizes = [x.out_shape for x in plan(b.conv(4, 3, 2, 1), b.maxpool(3, 2, 0)).layers]
    assert sizes == [(1, 4, 4, 4), (1, 1, 1, 4)]


def test_both_branches_begin_at_the_same_shape() -> None:
    layers = plan(b.block(16, STYLE.RESNET_3_3_DS)).layers
    by_name = {layer.name: layer for layer in layers}
    assert by_name["conv_proj"].in_shape == by_name["conv1"].in_shape == (1, 8, 8, 3)
    assert by_name["conv1"].out_shape == by_name["bn_proj"].out_shape == (1, 4, 4, 16)
    assert by_name["add2_end"].out_shape == (1, 4, 4, 16)


def test_nested_add2_in_stem_and_shortcut() -> None:
    inner = b.add2(b.identity(), b.seq(b.conv(3, 3, 1, 1), b.bn()))
    found = plan(b.add2(inner, b.seq(inner, b.relu())))
    assert kinds(found) == [
        "Add2Start", "Add2Start", "Identity", "Add2ShortcutEnd", "Conv", "Bn2d", "Add2End",
        "Add2ShortcutEnd", "Add2Start", "Identity", "Add2ShortcutEnd", "Conv", "Bn2d", "Add2End",
        "ReLU", "Add2End",
    ]  # fmt: skip
    assert found.output_shape == (1, 8, 8, 3)
    paths = [layer.path for layer in found.layers if layer.kind is LayerKind.CONV]
    assert paths == ["0.shortcut.stem.0", "0.stem.0.stem.0"]


def test_names_and_paths_of_blocks() -> None:
    found = plan(b.relu(), b.repeat(b.block(4, 8, STYLE.RESNET_1_3_1), 2))
    names = [layer.name for layer in found.layers]
    assert names[1:15] == [
        "add2_start", "conv_proj", "bn_proj", "add2_sc_end", "conv1", "bn1", "relu1", "conv2",
        "bn2", "relu2", "conv3", "bn3", "add2_end", "relu_post",
    ]  # fmt: skip
    assert names[15:18] == ["add2_start", "identity", "add2_sc_end"]
    assert found.layers[5].path == "1.0.conv1" and found.layers[18].path == "1.1.conv1"
    assert len({layer.path for layer in found.layers}) == len(found.layers)


def test_an_inverted_residual_is_depthwise_with_relu6() -> None:
    layers = plan(b.mbconv(6, 3, 1)).layers
    assert kinds(plan(b.mbconv(6, 3, 1))) == [
        "Add2Start", "Identity", "Add2ShortcutEnd", "Conv", "Bn2d", "ReLU6", "Conv", "Bn2d",
        "ReLU6", "Conv", "Bn2d", "Add2End",
    ]  # fmt: skip
    wide, deep, narrow = (layer for layer in layers if layer.kind is LayerKind.CONV)
    assert (wide["out_channels"], wide["groups"]) == (18, 1)
    assert (deep["out_channels"], deep["groups"], deep["kernel"]) == (18, 18, 3)
    assert (narrow["out_channels"], narrow["groups"]) == (3, 1)
    assert kinds(plan(b.mbconv(1, 5, 2))) == ["Conv", "Bn2d", "ReLU6", "Conv", "Bn2d"]


def test_mbconv_and_its_block_styles_are_the_same() -> None:
    for expand in (1, 6):
        for stride, suffix in ((1, ""), (2, "_DS")):
            style = STYLE[f"MB_E{expand}_K3{suffix}"]
            for out in (3, 5):
                assert plan(b.mbconv(expand, out, stride)) == plan(b.block(out, style))


def test_a_shortcut_needs_equal_channels_and_stride_1() -> None:
    assert "Add2Start" in kinds(plan(b.mbconv(6, 3, 1)))
    assert "Add2Start" not in kinds(plan(b.mbconv(6, 4, 1)))
    assert "Add2Start" not in kinds(plan(b.mbconv(6, 3, 2)))


# --- normalisation --------------------------------------------------------------------------------


def test_identities_stand_in_empty_shortcuts_alone() -> None:
    stem = b.seq(b.identity(), b.conv(3, 1), b.identity())
    found = plan(b.identity(), b.add2(b.seq(b.identity(), b.identity()), stem), b.identity())
    assert kinds(found) == ["Add2Start", "Identity", "Add2ShortcutEnd", "Conv", "Add2End"]


@pytest.mark.parametrize("act", [b.relu, b.silu, b.tanh_act, b.elu, b.hardswish, b.sigmoid])
def test_normalisation_after_features_is_1d_whatever_stands_between(act) -> None:
    for first in (b.fc(8, False), b.gap(), b.flatten()):
        assert "Bn1d" in kinds(plan(first, act(), b.dropout(0.5), b.channel_padding(), b.bn()))
    for first in (b.conv(8, 1), b.maxpool(2, 2, 0)):
        assert "Bn2d" in kinds(plan(first, act(), b.channel_padding(), b.bn()))


def test_the_branches_of_an_add2_decide_the_normalisation() -> None:
    residual = b.add2(b.identity(), b.seq(b.fc(6, True), b.bn()))
    assert kinds(plan(b.fc(6, True), residual, b.bn())).count("Bn1d") == 2
    assert "Bn2d" in kinds(plan(b.gap(), b.conv(4, 1), b.bn()))


def test_flatten_before_an_fc_depends_on_the_channels_alone() -> None:
    """So that plans compare: 16 channels are read as they are, 6 through a Flatten."""
    for layers in ([], [b.flatten()], [b.flatten(), b.flatten(), b.dropout(0.1)]):
        aligned = kinds(plan(b.conv(16, 3), *layers, b.fc(2, True)))
        assert "Flatten" not in aligned
        odd = plan(b.conv(6, 3), *layers, b.fc(2, True))
        assert kinds(odd)[-2:] == ["Flatten", "FC"]
        assert odd.layers[-2].out_shape == (1, 1, 1, 6 * 6 * 6)


def test_a_flatten_that_changes_what_follows_stays() -> None:
    found = plan(b.conv(8, 3), b.flatten(), b.bn(), b.fc(2, True))
    assert kinds(found) == ["Conv", "Flatten", "Bn1d", "FC"]
    assert found.parameters == 3 * 8 * 9 + 2 * 288 + 288 * 2 + 2
    assert kinds(plan(b.conv(8, 3), b.flatten())) == ["Conv", "Flatten"]
    assert kinds(plan(b.gap(), b.flatten())) == ["GAP"]


def test_a_classifier_ends_in_softmax() -> None:
    assert kinds(plan(b.gap(), b.fc(4, True), num_classes=4))[-1] == "SoftmaxCE"
    flat = plan(b.conv(1, 3, 3), num_classes=4)
    assert kinds(flat) == ["Conv", "Flatten", "SoftmaxCE"]
    assert flat.layers[-1].in_shape == (1, 1, 1, 4)


# --- fusion ---------------------------------------------------------------------------------------


def test_fused_kinds_keep_the_numbers_of_their_normalisation() -> None:
    found = plan(b.cbr(4, 3, 1, 1, momentum=0.3, eps=1e-3), fuse=True).layers[0]
    assert (found.kind, found["momentum"], found["eps"]) == (LayerKind.CBR, 0.3, 1e-3)
    assert [part.path for part in found.parts] == ["0.conv", "0.bn", "0.relu"]
    assert found.path == "0"


@pytest.mark.parametrize(
    ("layers", "kind"),
    [
        ([b.block(3, STYLE.RESNET_3_3)], "BasicBlockIdentity"),
        ([b.block(5, STYLE.RESNET_3_3)], "BasicBlockProjection"),
        ([b.block(5, STYLE.RESNET_3_3_DS)], "BasicBlockProjection"),
        ([b.block(2, 3, STYLE.RESNET_1_3_1)], "BottleneckIdentity"),
        ([b.block(2, 3, STYLE.RESNET_1_3_1_DS)], "BottleneckProjection"),
        ([networks.bottleneck_by_hand(2, 5, 2, True)], "BottleneckProjection"),
        ([b.mbconv(6, 3, 1)], "InvResidualIdentity"),
        ([b.mbconv(1, 3, 1)], "InvResidualIdentity"),
        ([b.mbconv(6, 3, 2)], "InvResidualNoShortcut"),
        ([b.conv(4, 3), b.bn(), b.relu()], "CBR"),
        ([b.group_conv(6, 3, 3), b.bn(), b.relu()], "CBR"),
        ([b.gap(), b.fc(2, False)], "GapFC"),
    ],
)
def test_known_blocks_become_one_layer(layers, kind: str) -> None:
    found = plan(*layers, fuse=True)
    assert kinds(found) == [kind]
    assert found.primitives == plan(*layers).layers


def _stem(*sizes) -> list:
    parts = [part for size in sizes for part in (b.conv(*size), b.bn(), b.relu())]
    return parts[:-1]


@pytest.mark.parametrize(
    "stem",
    [
        _stem((3, 5, 1, 2), (3, 3, 1, 1)),  # another kernel
        _stem((4, 3, 1, 1), (3, 3, 1, 1)),  # other channels between
        [*_stem((3, 3, 1, 1), (3, 3, 1, 1)), b.relu()],  # something more
        [b.conv(3, 3, 1, 1), b.bn(), b.silu(), b.conv(3, 3, 1, 1), b.bn()],
    ],
)
def test_what_only_resembles_a_block_is_no_block(stem) -> None:
    found = plan(b.add2(b.identity(), b.seq(*stem)), b.relu(), fuse=True)
    assert "Add2End" in kinds(found) and "BasicBlockIdentity" not in kinds(found)


def test_a_residual_without_its_relu_is_no_bottleneck() -> None:
    """A block of relu without one after the sum must not take the next layer."""
    block = networks.bottleneck_by_hand(2, 3, 1, False).children[0]
    found = plan(block, b.silu(), fuse=True)
    assert kinds(found)[-2:] == ["Add2End", "SiLU"]


def test_fusion_works_inside_branches() -> None:
    inner = b.seq(b.block(3, STYLE.RESNET_3_3), b.conv(3, 3, 1, 1), b.bn(), b.relu())
    assert kinds(plan(b.add2(b.identity(), inner), fuse=True)) == [
        "Add2Start", "Identity", "Add2ShortcutEnd", "BasicBlockIdentity", "CBR", "Add2End"
    ]  # fmt: skip


# --- errors name the place ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        (
            [b.relu(), b.conv(4, 9)],
            r"at 1 \(Conv\): expected an input that holds the window 9 x 9 with padding 0, "
            r"received \[1, 8, 8, 3\]; take a smaller window",
        ),
        (
            [b.repeat(b.seq(b.conv(4, 3), b.maxpool(2, 2, 0)), 3)],
            r"at 0.1.1 \(MaxPool\): expected an input that holds the window 2 x 2",
        ),
        ([b.group_conv(4, 2, 1)], r"at 0 \(Conv\): expected a number of channels .* 2 groups"),
        (
            [b.relu(), b.add2(b.identity(), b.conv(4, 3, 2, 1))],
            r"at 1.add2_end \(Add2End\): expected one shape of both branches, received "
            r"\[1, 8, 8, 3\] of the shortcut and \[1, 4, 4, 4\] of the stem; give the shortcut",
        ),
        (
            [b.add2(b.conv(3, 1), b.seq(b.identity(), b.identity()))],
            r"at 0.add2_end .*expected layers in the stem, received identity\(\) alone",
        ),
        (
            [b.repeat(b.repeat(b.repeat(b.relu(), 1000), 1000), 1000)],
            "may have 100000 layers, received more",
        ),
    ],
)
def test_what_does_not_fit_is_named_with_its_place(layers, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        plan(*layers)


def test_the_wrong_number_of_classes() -> None:
    with pytest.raises(InvalidArgumentError, match=r"each of 7 classes.*received \[1, 1, 1, 4\]"):
        plan(b.fc(4, True), num_classes=7)
    with pytest.raises(InvalidArgumentError, match="num_classes must be an integer"):
        plan(b.fc(4, True), num_classes=0)


@pytest.mark.parametrize("shape", [(8, 8), (8, 8, 0), (1, 8, 8, 3), "abc", (8, 8, 3.0), 5])
def test_wrong_input_shapes(shape) -> None:
    with pytest.raises(InvalidArgumentError, match="expected an input shape|must be an integer"):
        b.relu().plan(shape)


def test_only_blueprints_have_plans() -> None:
    with pytest.raises(InvalidArgumentError, match="expected a blueprint"):
        ArchPlan.from_blueprint([b.relu()])  # type: ignore[arg-type]


def test_deep_nesting_is_an_error_of_the_user() -> None:
    net = b.relu()
    for _ in range(5000):
        net = b.seq(net)
    with pytest.raises(InvalidArgumentError, match="moderate depth"):
        net.plan((8, 8, 3))


# --- text -----------------------------------------------------------------------------------------


def test_the_text_of_a_plan() -> None:
    found = plan(b.cbr(4, 3, 1, 1), b.gap_fc(2, True), num_classes=2, fuse=True)
    assert found.to_string().splitlines() == [
        "ArchPlan: 3 layers, fused",
        "Input: [1, 8, 8, 3]",
        "-" * 72,
        "  0 CBR                    [1, 8, 8, 3] -> [1, 8, 8, 4] [FIRST] out=4 k=3 s=1 p=1 "
        "groups=1 mom=0.1 eps=1e-05",
        "  1 GapFC                  [1, 8, 8, 4] -> [1, 1, 1, 2] out=2 bias=True",
        "  2 SoftmaxCE              [1, 1, 1, 2] -> [1, 1, 1, 2] classes=2",
    ]


def test_the_table_counts_parameters_and_operations() -> None:
    found = plan(b.conv(4, 3), b.bn(), b.relu(), b.maxpool(2, 2, 0), b.fc(2, True))
    rows = [line.split() for line in found.table().splitlines()]
    assert rows[0] == ["#", "path", "kind", "input", "output", "parameters", "MACs", "FLOPs"]
    counts = [tuple(row[-3:]) for row in rows[1:]]
    macs, image = 6 * 6 * 4 * 27, 6 * 6 * 4
    assert counts == [
        ("108", f"{macs:,}", f"{2 * macs:,}"),
        ("8", "0", f"{2 * image}"),
        ("0", "0", f"{image}"),
        ("0", "0", f"{36 * 4}"),
        ("0", "0", "0"),  # flatten: 4 channels
        ("74", "72", "146"),
        ("190", f"{macs + 72:,}", f"{2 * macs + 3 * image + 144 + 146:,}"),
    ]


def test_the_default_input_is_an_image_of_imagenet() -> None:
    assert ArchPlan.from_blueprint(b.gap()).input_spec == InputSpec(3, 224, 224)
    assert "unfused: input [1, 224, 224, 3], 1 layers" in repr(ArchPlan.from_blueprint(b.gap()))
