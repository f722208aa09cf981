"""Well-known facts of well-known networks: parameters, multiply-adds, layers, shapes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from frame.blueprint import ArchLayer, ArchPlan, BluePrint, InputSpec, LayerKind
from frame.blueprint.layers import FUSED
from frame.blueprint.shapes import parameter_count
from tests.blueprint import networks

IMAGE, DIGIT = (224, 224, 3), (28, 28, 1)

# network, input, classes, parameters, layers unfused and fused, multiply-adds
FACTS = [
    (networks.mlp, DIGIT, 10, 1_462_538, 9, 9, 1_460_736),
    (networks.mlp_bn, DIGIT, 10, 1_466_122, 12, 12, 1_460_736),
    (networks.lenet5, (32, 32, 1), 10, 61_684, 12, 12, 416_520),
    (networks.lenet, DIGIT, 10, 64_458, 13, 13, 1_633_840),
    (networks.lenet_bn, DIGIT, 10, 64_922, 17, 13, 1_633_840),
    (networks.mini_lenet, DIGIT, 10, 937_802, 10, 10, 1_388_032),
    (networks.mini_lenet_bn, DIGIT, 10, 937_818, 11, 9, 1_388_032),
    (networks.network_in_network, (32, 32, 3), 10, 1_478_016, 24, 24, 393_338_880),
    (networks.all_convolutions, DIGIT, 10, 149_888, 7, 7, 117_512_192),
    (networks.odd_flatten, DIGIT, 10, 1_941_188, 11, 11, 1_982_856),
    (networks.vgg16_bn, IMAGE, 1000, 138_361_768, 52, 26, 15_470_264_320),
    (networks.resnet18, IMAGE, 1000, 11_689_512, 90, 12, 1_814_073_344),
    (networks.resnet34, IMAGE, 1000, 21_797_672, 170, 20, 3_663_761_408),
    (networks.resnet50, IMAGE, 1000, 25_557_032, 219, 20, 4_089_184_256),
    # 182: the inverted residual of expansion 1 has no convolution that expands
    (networks.mobilenet_v2, IMAGE, 1000, 3_504_872, 182, 21, 300_774_272),
]
NAMES = [row[0].__name__ for row in FACTS]


@pytest.mark.parametrize(("make", "image", "classes", "count", "plain", "fused", "macs"), FACTS)
def test_counts(make, image, classes, count, plain, fused, macs) -> None:
    for fuse, layers in ((False, plain), (True, fused)):
        plan = make().plan(image, num_classes=classes, fuse=fuse)
        assert len(plan.layers) == layers
        assert plan.parameters == count
        assert plan.multiply_adds == macs
        assert plan.module().count_parameters(trainable=True) == count


@pytest.mark.parametrize("row", FACTS, ids=NAMES)
def test_fused_and_unfused_plans_have_the_same_parameters_and_operations(row) -> None:
    plain, fused = (row[0]().plan(row[1], fuse=fuse) for fuse in (False, True))
    assert fused.primitives == plain.layers and fused.operations == plain.operations
    specs = [
        [(s.name, s.shape, s.role) for s in plan.module().parameters()] for plan in (plain, fused)
    ]
    assert specs[0] == specs[1]


def test_a_plan_without_fusion_has_no_fused_kinds() -> None:
    assert not {layer.kind for layer in networks.resnet50().plan(IMAGE).layers} & FUSED


def kinds(plan: ArchPlan) -> dict[str, int]:
    names = [str(layer.kind) for layer in plan.layers]
    return {name: names.count(name) for name in dict.fromkeys(names)}


def test_fused_resnet50_is_a_list_of_bottlenecks() -> None:
    plan = networks.resnet50().plan(IMAGE, num_classes=1000, fuse=True)
    assert kinds(plan) == {
        "CBR": 1,
        "MaxPool": 1,
        "BottleneckProjection": 4,
        "BottleneckIdentity": 12,
        "GapFC": 1,
        "SoftmaxCE": 1,
    }
    projections = [x for x in plan.layers if x.kind is LayerKind.BOTTLENECK_PROJECTION]
    assert [x["stride"] for x in projections] == [1, 2, 2, 2]
    sizes = [layer.out_shape for layer in plan.layers if layer.kind is not plan.layers[3].kind]
    assert sizes == [
        (1, 112, 112, 64),
        (1, 56, 56, 64),
        (1, 56, 56, 256),
        (1, 28, 28, 512),
        (1, 14, 14, 1024),
        (1, 7, 7, 2048),
        (1, 1, 1, 1000),
        (1, 1, 1, 1000),
    ]


def test_fused_mobilenet_is_a_list_of_inverted_residuals() -> None:
    found = kinds(networks.mobilenet_v2().plan(IMAGE, num_classes=1000, fuse=True))
    assert found["InvResidualIdentity"] == 10 and found["InvResidualNoShortcut"] == 7
    assert found["CBR"] == 2 and found["GapFC"] == 1


def test_fused_vgg_keeps_its_fc_without_a_flatten() -> None:
    plan = networks.vgg16_bn().plan(IMAGE, num_classes=1000, fuse=True)
    assert kinds(plan) == {
        "CBR": 13, "MaxPool": 5, "FC": 3, "ReLU": 2, "Dropout": 2, "SoftmaxCE": 1
    }  # fmt: skip
    first = next(layer for layer in plan.layers if layer.kind is LayerKind.FC)
    assert first.in_shape == (1, 7, 7, 512)
    assert sum(map(parameter_count, plan.layers[:18])) == 14_710_464 + 8_448


def test_the_mlp_begins_with_a_flatten() -> None:
    first = networks.mlp().plan((28, 28, 1), num_classes=10).layers[0]
    assert first.kind is LayerKind.FLATTEN
    assert (first.in_shape, first.out_shape) == ((1, 28, 28, 1), (1, 1, 1, 784))


def test_an_image_of_six_channels_is_flattened() -> None:
    (flat,) = (
        layer
        for layer in networks.odd_flatten().plan(DIGIT).layers
        if layer.kind is LayerKind.FLATTEN
    )
    assert (flat.in_shape, flat.out_shape) == ((1, 28, 28, 6), (1, 1, 1, 4704))


def test_normalisations_of_images_and_of_features() -> None:
    found = kinds(networks.lenet_bn().plan(DIGIT, num_classes=10))
    assert (found["Bn2d"], found["Bn1d"]) == (2, 2)


def test_three_spellings_of_resnet50_are_one_plan() -> None:
    from frame.blueprint import cbr, maxpool, seq

    first = networks.resnet50()
    second = seq(cbr(64, 7, 2, 3), maxpool(3, 2, 1), *first.children[1:])
    third = networks.resnet50_by_hand()
    plans = [without_names(each, fuse) for fuse in (True, False) for each in (first, second, third)]
    assert plans[0] == plans[1] == plans[2] and plans[3] == plans[4] == plans[5]


def without_names(net: BluePrint, fuse: bool) -> list[ArchLayer]:
    plan = ArchPlan.from_blueprint(net, InputSpec(), num_classes=1000, fuse=fuse)
    return [replace(layer, name="", path="", parts=()) for layer in plan.layers]
