"""Any metric that a workload names, in place of the accuracy alone.

Revision: 0002
"""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_TRIALS = sa.table(
    "trials",
    sa.column("validation_accuracy", sa.Double()),
    sa.column("validation_metrics", sa.JSON()),
    sa.column("metric_directions", sa.JSON()),
    sa.column("id", sa.String()),
)


def upgrade() -> None:
    # Never a batch: on SQLite it would make the table anew, and the old one's end would take its stages along.
    for name in ("validation_metrics", "metric_directions"):
        op.add_column("trials", sa.Column(name, sa.JSON(none_as_null=True), nullable=False, server_default="{}"))
    for trial_id, accuracy in _rows(_TRIALS.c.id, _TRIALS.c.validation_accuracy):
        _set(trial_id, validation_metrics={"accuracy": accuracy}, metric_directions={"accuracy": "max"})
    op.drop_column("trials", "validation_accuracy")


def downgrade() -> None:
    op.add_column("trials", sa.Column("validation_accuracy", sa.Double(), nullable=True))
    for trial_id, metrics in _rows(_TRIALS.c.id, _TRIALS.c.validation_metrics):
        _set(trial_id, validation_accuracy=metrics.get("accuracy"))
    op.drop_column("trials", "validation_metrics")
    op.drop_column("trials", "metric_directions")


def _rows(*columns: sa.ColumnClause[Any]) -> list[tuple[Any, ...]]:
    found = op.get_bind().execute(sa.select(*columns).where(columns[1].is_not(None)))
    return [tuple(row) for row in found]


def _set(trial_id: str, **values: Any) -> None:
    op.get_bind().execute(sa.update(_TRIALS).where(_TRIALS.c.id == trial_id).values(**values))
