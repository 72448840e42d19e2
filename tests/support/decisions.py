"""Decisions as a controller makes them, for tests of their records."""

from collections.abc import Sequence

from search.types import Allowance, Candidate, Decision, Forecast, ProbeReport, Values


def decision(stage: int = 0, *, learning_rate: float = 0.1, rewards: Sequence[float | None] = ()) -> Decision:
    """Return a stage's decision after probes with these rewards, at rates of 0.01, 0.1, 1, ..."""
    probes = tuple(
        ProbeReport(
            candidate=Candidate(
                id=f"{stage}.{number}",
                stage=stage,
                values=Values(learning_rate=0.01 * 10**number),
                allowance=Allowance(steps=7),
                origin="wide",
            ),
            forecast=Forecast(mean=0.5, std=0.1, status="ok" if reward is not None else "diverged"),
            reward=reward,
            variance=0.01,
        )
        for number, reward in enumerate(rewards)
    )
    return Decision(
        stage=stage,
        values=Values(learning_rate=learning_rate),
        reason="the best of three",
        switched=False,
        commit_until=Allowance(steps=100),
        probes=probes,
    )
