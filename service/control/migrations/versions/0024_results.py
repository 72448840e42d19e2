"""Lists are ordered by results from an index, and words find jobs by what they train.

Revision: 0024
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None

_JOBS = sa.table(
    "jobs",
    *(sa.column(name, sa.String) for name in ("id", "name", "notes", "state")),
    sa.column("spec", sa.JSON),
    *(sa.column(name, sa.Double) for name in ("result", "score")),
)
_LABELS = sa.table("job_labels", *(sa.column(name, sa.String) for name in ("job_id", "name", "value")))
_TEXTS = sa.table("job_texts", sa.column("job_id", sa.String), sa.column("text", sa.String))
_TRIALS = sa.table(
    "trials",
    *(sa.column(name, sa.String) for name in ("job_id", "outcome")),
    sa.column("validation_loss", sa.Double),
    *(sa.column(name, sa.JSON) for name in ("validation_metrics", "metric_directions")),
)
_AT_ONCE = 500  # a job has a few kilobytes


def upgrade() -> None:
    for name in ("result", "score"):
        op.add_column("jobs", sa.Column(name, sa.Double(), nullable=True))
    database = op.get_bind()
    ids = database.execute(sa.select(_JOBS.c.id).order_by(_JOBS.c.id)).scalars().all()
    for first in range(0, len(ids), _AT_ONCE):
        _rebuild_texts(database, ids[first : first + _AT_ONCE])
        _fill_results(database, ids[first : first + _AT_ONCE])
    op.create_index(op.f("ix_jobs_result_id"), "jobs", [sa.text("coalesce(score, 1000000000000.0)"), "id"])


def downgrade() -> None:
    op.drop_index(op.f("ix_jobs_result_id"), "jobs")
    for name in ("score", "result"):
        op.drop_column("jobs", name)


def _rebuild_texts(database: sa.Connection, ids: Sequence[str]) -> None:
    labels: defaultdict[str, list[str]] = defaultdict(list)
    for job_id, *label in database.execute(sa.select(_LABELS).where(_LABELS.c.job_id.in_(ids))):
        labels[job_id] += label
    jobs = database.execute(sa.select(_JOBS).where(_JOBS.c.id.in_(ids)))
    texts = [
        {"of": job.id, "words": "\n".join([job.name, job.notes, *labels[job.id], *_methods(job.spec)]).lower()}
        for job in jobs
    ]
    update = sa.update(_TEXTS).where(_TEXTS.c.job_id == sa.bindparam("of"))
    database.execute(update.values(text=sa.bindparam("words")), texts)


def _fill_results(database: sa.Connection, ids: Sequence[str]) -> None:
    trials: defaultdict[str, list[Any]] = defaultdict(list)
    for job_id, *trial in database.execute(sa.select(_TRIALS).where(_TRIALS.c.job_id.in_(ids))):
        trials[job_id].append(trial)
    results = []
    for job in database.execute(sa.select(_JOBS).where(_JOBS.c.id.in_(ids), _JOBS.c.state == "succeeded")):
        metric = job.spec.get("objective", {}).get("metric", "loss")
        if found := sorted(_results(metric, trials[job.id])):
            score, value = found[0]
            results.append({"of": job.id, "value": value, "negated": score})
    update = sa.update(_JOBS).where(_JOBS.c.id == sa.bindparam("of"))
    if results:
        database.execute(update.values(result=sa.bindparam("value"), score=sa.bindparam("negated")), results)


def _methods(spec: Mapping[str, Any]) -> Iterator[str]:
    workload = spec.get("workload", {})
    yield str(workload.get("factory") or workload.get("kind", ""))
    samples = ({path: of.get("choice")} for path, of in spec.get("params", {}).items())
    for part in (spec, *spec.get("arms", ()), *samples):
        for name in ("exchange", "sync", "optimizer"):
            yield from _kinds(part.get(name))


def _kinds(part: Any) -> Iterator[str]:
    if isinstance(part, Mapping):
        yield str(part.get("kind", ""))
        yield from _kinds(part.get("options"))
    elif isinstance(part, list):
        yield from chain.from_iterable(map(_kinds, part))
    elif isinstance(part, str):
        yield part


def _results(metric: str, trials: list[Any]) -> Iterator[tuple[float, float]]:
    """Yield the score of each trial that ended well, lower is better, and its value."""
    for outcome, loss, metrics, directions in trials:
        value = loss if metric == "loss" else (metrics or {}).get(metric)
        if outcome not in (None, "diverged", "failed") and value is not None and math.isfinite(value):
            yield (-value if (directions or {}).get(metric) == "max" else value), value
