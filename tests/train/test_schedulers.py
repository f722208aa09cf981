"""Scheduler records: their rates, beside those of torch.optim.lr_scheduler, and their checks."""

from __future__ import annotations

import math

import pytest

from frame.core.errors import InvalidArgumentError
from frame.train import (
    SCHEDULERS,
    WSDLR,
    ConstantLR,
    CosineAnnealingLR,
    CosineAnnealingWithWarmRestartsLR,
    ExponentialLR,
    MultiStepLR,
    PolynomialLR,
    StepLR,
)

# Rates of torch 2.13 for lr=0.1 (`get_last_lr` before each step), positions 0, 1, 2, ...
TORCH = [
    (StepLR(step_size=3), [0.1] * 3 + [0.01] * 3 + [0.001] * 2),
    (MultiStepLR(milestones=(2, 5), gamma=0.5), [0.1] * 2 + [0.05] * 3 + [0.025] * 2),
    (ExponentialLR(gamma=0.9), [0.1, 0.09, 0.081, 0.0729, 0.06561]),
    (PolynomialLR(power=2.0, end_lr=0.0, total=4), [0.1, 0.05625, 0.025, 0.00625, 0.0, 0.0]),
    (
        CosineAnnealingLR(eta_min=0.01),
        [0.1, 0.09140576474687263, 0.06890576474687263, 0.04109423525312737]
        + [0.01859423525312737, 0.01],
    ),
    (
        CosineAnnealingWithWarmRestartsLR(T_0=2, T_mult=2),
        [0.1, 0.05, 0.1, 0.08535533905932738, 0.05, 0.014644660940672627, 0.1],
    ),
]


@pytest.mark.parametrize(("scheduler", "rates"), TORCH, ids=lambda each: getattr(each, "name", ""))
def test_rates_are_those_of_torch(scheduler, rates) -> None:
    assert scheduler.rates(len(rates)) == pytest.approx(rates, rel=1e-12, abs=1e-15)


def test_the_cosine_of_the_published_recipe() -> None:
    """Base 0.36, warm-up of 10 of 100 epochs from 0.01: rates that stand in a training log."""
    scheduler = CosineAnnealingLR(base_lr=0.36, warmup=10, warmup_start_lr=0.01)
    rates = [f"{rate:.6f}" for rate in scheduler.rates(100)]
    known = {
        **dict(zip((1, 2, 3, 10, 11), (0.01, 0.045, 0.08, 0.325, 0.36), strict=True)),
        **dict(zip((12, 50, 82, 99), (0.359888, 0.214727, 0.035128, 0.000113), strict=True)),
        100: 0.000001,
    }
    assert {e: rates[e - 1] for e in known} == {e: f"{rate:.6f}" for e, rate in known.items()}


def test_the_cosine_of_the_published_perceptron() -> None:
    scheduler = CosineAnnealingLR(base_lr=1e-3, warmup=5, warmup_start_lr=0.0)
    rates = [f"{rate:.6f}" for rate in scheduler.rates(100)]
    assert rates[:6] == ["0.000000", "0.000200", "0.000400", "0.000600", "0.000800", "0.001000"]
    assert [rates[e - 1] for e in (50, 88, 100)] == ["0.000550", "0.000041", "0.000001"]


def test_no_epoch_of_a_warm_up_has_a_rate_of_zero() -> None:
    rates = ConstantLR(base_lr=1.0, warmup=4).rates(6)
    assert rates == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0, 1.0])
    assert ConstantLR(base_lr=1.0, warmup=4, warmup_start_factor=0.5).rates(5) == pytest.approx(
        [0.5, 0.625, 0.75, 0.875, 1.0]
    )


def test_counts_begin_after_the_warm_up_and_milestones_do_not() -> None:
    assert StepLR(warmup=2, step_size=2).rates(7)[2:] == pytest.approx([0.1, 0.1, 0.01, 0.01, 1e-3])
    assert MultiStepLR(warmup=2, milestones=(4,)).rates(6)[2:] == pytest.approx(
        [0.1, 0.1, 0.01, 0.01]
    )


def test_warm_up_stable_decay() -> None:
    rates = WSDLR(base_lr=1.0, warmup=2, decay_start=0.6).rates(10)
    assert rates[2:] == pytest.approx([1.0] * 5 + [0.75, 0.5, 0.25])
    steep = WSDLR(base_lr=1.0, decay_start=0.6, shape="sqrt", end_lr=0.1).rates(10)
    assert steep[6:] == pytest.approx(
        [0.1 + 0.9 * (1 - math.sqrt(part)) for part in (0, 0.25, 0.5, 0.75)]
    )


def test_a_schedule_changes_by_epoch_or_by_step() -> None:
    by_epoch = ExponentialLR(gamma=0.5).schedule(3)
    assert [by_epoch(step, 6) for step in range(6)] == [0.1] * 3 + [0.05] * 3
    by_step = CosineAnnealingLR(unit="step", eta_min=0.0).schedule(3)
    assert by_step(0, 6) == 0.1 and by_step(5, 6) == 0.0


@pytest.mark.parametrize("cls", SCHEDULERS.values(), ids=lambda cls: cls.name)
@pytest.mark.parametrize("positions", [1, 2, 3, 50])
def test_every_rate_is_a_number_up_to_the_base(cls, positions) -> None:
    options = {"milestones": (2, 7)} if cls is MultiStepLR else {}
    rates = cls(base_lr=0.3, warmup=2, **options).rates(positions)
    assert len(rates) == positions and all(0 <= rate <= 0.3 for rate in rates)
    assert cls.name in SCHEDULERS and cls(**options) == cls(**options)


@pytest.mark.parametrize(
    ("cls", "options", "expected"),
    [
        (ConstantLR, {"base_lr": 0}, "base_lr to be a finite number above 0, received 0"),
        (ConstantLR, {"base_lr": float("nan")}, "received nan"),
        (ConstantLR, {"base_lr": "0.1"}, "received '0.1'"),
        (ConstantLR, {"warmup": -1}, "warmup to be an integer of at least 0, received -1"),
        (ConstantLR, {"warmup": 1.5}, "received 1.5"),
        (ConstantLR, {"unit": "batch"}, "unit to be one of epoch, step, received 'batch'"),
        (
            ConstantLR,
            {"warmup_start_lr": 0.1, "warmup_start_factor": 0.1},
            "warmup_start_lr or warmup_start_factor, not both",
        ),
        (ConstantLR, {"warmup_start_factor": 2.0}, "of at most 1, received 2.0"),
        (StepLR, {"step_size": 0}, "step_size"),
        (MultiStepLR, {}, "milestones to be rising positions"),
        (MultiStepLR, {"milestones": (5, 5)}, "milestones to be rising positions"),
        (
            MultiStepLR,
            {"milestones": (0,)},
            "each of its milestones to be an integer of at least 1",
        ),
        (ExponentialLR, {"gamma": 0.0}, "gamma"),
        (PolynomialLR, {"power": -1}, "power"),
        (CosineAnnealingLR, {"eta_min": -1e-6}, "eta_min"),
        (CosineAnnealingWithWarmRestartsLR, {"T_mult": 0}, "T_mult"),
        (WSDLR, {"decay_start": 1.5}, "decay_start"),
        (WSDLR, {"shape": "steep"}, "shape to be linear or sqrt, received 'steep'"),
    ],
)
def test_options_are_checked_at_declaration(cls, options, expected) -> None:
    with pytest.raises(InvalidArgumentError, match=expected):
        cls(**options)
