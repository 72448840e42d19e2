"""The plain Gaussian process agrees with BoTorch's, and replaces it where that one fails."""

import math

import numpy as np
import pytest

from search.bayesian.controller import Controller
from search.config import BoConfig, Budget
from search.space import Axis, SearchSpace
from search.surrogate import model
from search.surrogate.acquisition import next_point, sobol_points
from search.surrogate.gaussian_process import Expectation, GaussianProcess, log_h
from search.surrogate.model import Surrogate, fit
from search.types import Observation, Spent, Values

UNIT_SQUARE = np.array([[0.0, 0.0], [1.0, 1.0]])
NOTHING = np.zeros((0, 2))
TILTED = Expectation(lambda points: 2 * points[:, 0], residual=0.5)


@pytest.fixture(scope="module")
def data():
    points = sobol_points(8, UNIT_SQUARE, seed=0)
    rewards = np.sin(4 * points[:, 0]) + points[:, 1] ** 2 + np.random.default_rng(0).normal(0, 0.02, 8)
    return points, rewards, np.full(8, 0.02**2)


@pytest.mark.parametrize("expected", [Expectation(), TILTED])
def test_with_the_same_length_scales_it_has_the_posterior_of_botorchs(data, expected):
    theirs = Surrogate(*data, expected=expected)
    scales = theirs.model.covar_module.lengthscale.detach().numpy()[0]
    ours = GaussianProcess(*data, expected=expected, scales=scales)
    cloud = sobol_points(50, UNIT_SQUARE, seed=1)
    (mean, covariance), (their_mean, their_covariance) = ours.joint(cloud), theirs.joint(cloud)

    assert mean == pytest.approx(their_mean, abs=1e-4)
    assert covariance == pytest.approx(their_covariance, abs=1e-9)
    assert ours.marginals(cloud)[1] ** 2 == pytest.approx(np.diag(covariance), abs=1e-9)


def test_its_own_length_scales_are_near_those_of_botorch(data):
    theirs = Surrogate(*data).model.covar_module.lengthscale.detach().numpy()[0]

    assert np.abs(np.log(GaussianProcess(*data).scales / theirs)).max() < math.log(1.4)


@pytest.mark.parametrize("z", [-30.0, -20.001, -19.999, -6.0, -1.0, 0.0, 2.0])
def test_the_log_of_the_expected_improvement_is_its_integral(z):
    steps = np.linspace(0, 12, 200_001)  # phi(z) + z Phi(z) is the integral of u phi(u - z) over u > 0
    log_integrand = np.log(np.maximum(steps, 1e-300)) - (steps - z) ** 2 / 2 - math.log(math.sqrt(2 * math.pi))
    top = log_integrand.max()
    integral = top + math.log(np.trapezoid(np.exp(log_integrand - top), steps))

    assert log_h(np.array([z]))[0] == pytest.approx(integral, abs=1e-5)


def test_a_pending_point_sends_the_next_one_elsewhere(data):
    process = GaussianProcess(*data)
    first = next_point(process, UNIT_SQUARE, pending=NOTHING, snap=np.asarray, is_legal=lambda point: True, seed=1)
    second = next_point(process, UNIT_SQUARE, pending=first[None], snap=np.asarray, is_legal=lambda point: True, seed=1)

    assert np.linalg.norm(first - second) > 0.01


def test_points_on_top_of_each_other_and_a_constant_reward_are_no_error():
    process = GaussianProcess(np.full((5, 2), 0.5), np.ones(5), np.zeros(5))

    assert process.mean(np.array([[0.5, 0.5], [0.1, 0.9]])) == pytest.approx(1.0)


@pytest.fixture
def unfittable(monkeypatch):
    def fail(*_, **__):
        raise model.ModelFittingError("All attempts to fit the model have failed.\nSee the log.")

    monkeypatch.setattr(model, "fit_gpytorch_mll_scipy", fail)


def test_where_botorchs_fit_fails_the_plain_one_answers_and_says_so(data, unfittable):
    fallback = fit(*data)

    assert isinstance(fallback, GaussianProcess)
    assert fallback.note == "by the fallback surrogate: All attempts to fit the model have failed"


def test_a_posterior_that_is_not_finite_is_a_failure(data, monkeypatch):
    monkeypatch.setattr(Surrogate, "joint", lambda self, points: (np.full(len(points), np.nan), np.eye(len(points))))

    assert fit(*data).note == "by the fallback surrogate: its posterior is not finite"


@pytest.mark.parametrize("broken", ["fit_gpytorch_mll_scipy", "acquisition"])
def test_training_goes_on_without_botorch_and_finds_the_rate(monkeypatch, unfittable, broken):
    if broken == "acquisition":
        monkeypatch.undo()
        monkeypatch.setattr("search.surrogate.acquisition.qLogNoisyExpectedImprovement", _not_positive_definite)
    level = Axis(name="level", low=0.003, high=0.1)  # along the rate alone no surrogate is asked
    space = SearchSpace(optimizer="schedulefree_sgd", guess=Values(learning_rate=0.005, level=0.02), axes=(level,))
    controller, steps, asked = Controller(space, BoConfig(wide_probes=7), 0, budget=Budget(steps=100_000)), 0, []
    while (candidate := controller.ask()) is not None:
        steps += 20
        asked.append(candidate.origin)
        tail = 2 * math.exp(-math.exp(-(math.log10(candidate.values.learning_rate / 0.3) ** 2)))
        controller.tell(
            Observation(
                candidate_id=candidate.id,
                losses=(2.0,) * 5 + (tail,) * 15,
                step_seconds=(),
                bytes_sent=0,
                spent=Spent(steps=steps),
            )
        )
    decision = controller.decide()

    assert "fallback" in asked and "acquisition" not in asked
    assert 0.2 < decision.values.learning_rate < 0.5
    assert ("by the fallback surrogate: All attempts" in decision.reason) is (broken != "acquisition")


def _not_positive_definite(*_, **__):
    raise RuntimeError("linalg.cholesky: The factorization could not be completed")
