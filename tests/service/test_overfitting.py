"""Overfitting: the validation metric gets worse while the training loss still falls."""

import pytest

from service.control.results.overfitting import sentence, worsening
from service.wire.trials import Series


def _series(*values: float | None, every: int = 10) -> Series:
    steps = tuple(every * index for index in range(len(values)))
    return Series(
        trial_id="t", arm="a", seed=0, name="n", steps=steps, seconds=tuple(map(float, steps)), values=values,
        num_points=len(values),
    )  # fmt: skip


FALLING = _series(*(1.0 / (1 + step) for step in range(60)), every=1)
RISING = _series(*(0.1 + 0.01 * step for step in range(60)), every=1)


def test_a_loss_that_rises_while_training_goes_on_falling_is_told_with_the_step_and_the_share() -> None:
    found = worsening(_series(2.0, 0.5, 0.4, 0.5, None, 0.6), "min")

    assert found is not None
    assert sentence(found, "loss", FALLING) == (
        "overfitted: after step 20 the validation loss rose by 50%, from 0.4 to 0.6, while the training loss fell"
    )


def test_a_metric_that_is_better_higher_falls() -> None:
    found = worsening(_series(0.5, 0.8, 0.6), "max")

    assert found is not None
    assert "after step 10 the validation accuracy fell by 25%" in str(sentence(found, "accuracy", FALLING))


def test_a_training_loss_that_rises_too_is_no_overfitting() -> None:
    found = worsening(_series(0.5, 0.4, 0.6), "min")

    assert found is not None and sentence(found, "loss", RISING) is None


def test_too_few_steps_after_the_best_say_nothing() -> None:
    found = worsening(_series(0.5, 0.4, 0.6, every=28), "min")

    assert found is not None and sentence(found, "loss", _series(*(1.0, 0.5) * 10, every=1)) is None


@pytest.mark.parametrize("values", [(), (None,), (2.0, 1.0, 0.5), (2.0, 0.5, 0.51), (1.0, 0.0, 0.3)])
def test_a_curve_that_ends_near_its_best_is_not_worse(values: tuple[float | None, ...]) -> None:
    assert worsening(_series(*values), "min") is None
