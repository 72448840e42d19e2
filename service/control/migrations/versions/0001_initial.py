"""The first schema.

Revision: 0001
"""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_INT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_JSON = sa.JSON(none_as_null=True)


def upgrade() -> None:
    _create_jobs()
    _create_job_labels()
    _create_attempts()
    _create_streams()
    _create_trials()
    _create_stages()
    _create_probes()
    _create_metric_points()
    _create_idempotency_keys()
    _create_api_keys()


def downgrade() -> None:
    for table in (
        "api_keys",
        "idempotency_keys",
        "metric_points",
        "probes",
        "stages",
        "trials",
        "streams",
        "attempts",
        "job_labels",
        "jobs",
    ):
        op.drop_table(table)


def _create_jobs() -> None:
    op.create_table(
        "jobs",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("spec", _JSON, nullable=False),
        sa.Column("attempt", _INT, nullable=False),
        sa.Column("version", _INT, nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=True),
        sa.Column("finished_at", sa.Double(), nullable=True),
        sa.Column("deadline", sa.Double(), nullable=True),
        sa.Column("not_before", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_jobs")),
    )
    op.create_index("ix_jobs_state_id", "jobs", ["state", "id"], unique=False)


def _create_job_labels() -> None:
    op.create_table(
        "job_labels",
        sa.Column("job_id", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("value", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_job_labels_job_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job_id", "name", name=op.f("pk_job_labels")),
    )
    op.create_index("ix_job_labels_name_value", "job_labels", ["name", "value", "job_id"], unique=False)


def _create_attempts() -> None:
    op.create_table(
        "attempts",
        sa.Column("job_id", sa.String(), nullable=False),
        sa.Column("number", _INT, nullable=False),
        sa.Column("submission_id", sa.String(), nullable=False),
        sa.Column("began_at", sa.Double(), nullable=False),
        sa.Column("lease_expires", sa.Double(), nullable=False),
        sa.Column("ended_at", sa.Double(), nullable=True),
        sa.Column("outcome", sa.String(), nullable=True),
        sa.Column("reason", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_attempts_job_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job_id", "number", name=op.f("pk_attempts")),
    )


def _create_streams() -> None:
    op.create_table(
        "streams",
        sa.Column("job_id", sa.String(), nullable=False),
        sa.Column("number", _INT, nullable=False),
        sa.Column("stream", sa.String(), nullable=False),
        sa.Column("last_sequence", _INT, nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_streams_job_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job_id", "number", "stream", name=op.f("pk_streams")),
    )


def _create_trials() -> None:
    op.create_table(
        "trials",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("job_id", sa.String(), nullable=False),
        sa.Column("position", _INT, nullable=False),
        sa.Column("arm", sa.String(), nullable=False),
        sa.Column("seed", _INT, nullable=False),
        sa.Column("outcome", sa.String(), nullable=True),
        sa.Column("backend", sa.String(), nullable=True),
        sa.Column("device", sa.String(), nullable=True),
        sa.Column("step", _INT, nullable=False),
        sa.Column("seconds", sa.Double(), nullable=False),
        sa.Column("learning_rate", sa.Double(), nullable=True),
        sa.Column("level", sa.Double(), nullable=True),
        sa.Column("validation_loss", sa.Double(), nullable=True),
        sa.Column("validation_accuracy", sa.Double(), nullable=True),
        sa.Column("bill", _JSON, nullable=False),
        sa.Column("schedule", _JSON, nullable=True),
        sa.Column("weights_url", sa.String(), nullable=True),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_trials_job_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_trials")),
    )
    op.create_index("ix_trials_job_id", "trials", ["job_id", "position"], unique=False)


def _create_stages() -> None:
    op.create_table(
        "stages",
        sa.Column("trial_id", sa.String(), nullable=False),
        sa.Column("stage", _INT, nullable=False),
        sa.Column("first_step", _INT, nullable=False),
        sa.Column("learning_rate", sa.Double(), nullable=False),
        sa.Column("level", sa.Double(), nullable=True),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("switched", sa.Boolean(), nullable=False),
        sa.Column("probability", sa.Double(), nullable=True),
        sa.Column("forecast", sa.Double(), nullable=True),
        sa.Column("forecast_std", sa.Double(), nullable=True),
        sa.Column("search_seconds", sa.Double(), nullable=False),
        sa.Column("search_steps", _INT, nullable=False),
        sa.Column("search_bytes", _INT, nullable=False),
        sa.Column("decision", _JSON, nullable=False),
        sa.Column("closed", sa.Boolean(), nullable=False),
        sa.Column("num_steps", _INT, nullable=True),
        sa.Column("density", sa.Double(), nullable=True),
        sa.Column("threshold", sa.Double(), nullable=True),
        sa.Column("bill", _JSON, nullable=True),
        sa.Column("resume", _JSON, nullable=True),
        sa.Column("resume_step", _INT, nullable=True),
        sa.ForeignKeyConstraint(["trial_id"], ["trials.id"], name=op.f("fk_stages_trial_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("trial_id", "stage", name=op.f("pk_stages")),
    )


def _create_probes() -> None:
    op.create_table(
        "probes",
        sa.Column("id", _INT, nullable=False),
        sa.Column("trial_id", sa.String(), nullable=False),
        sa.Column("stage", _INT, nullable=False),
        sa.Column("probe_id", sa.String(), nullable=False),
        sa.Column("learning_rate", sa.Double(), nullable=False),
        sa.Column("level", sa.Double(), nullable=True),
        sa.Column("origin", sa.String(), nullable=False),
        sa.Column("num_steps", _INT, nullable=False),
        sa.Column("seconds", sa.Double(), nullable=False),
        sa.Column("bytes_sent", _INT, nullable=False),
        sa.Column("density", sa.Double(), nullable=True),
        sa.Column("loss", sa.Double(), nullable=True),
        sa.Column("forecast", sa.Double(), nullable=True),
        sa.Column("forecast_std", sa.Double(), nullable=True),
        sa.Column("status", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(["trial_id"], ["trials.id"], name=op.f("fk_probes_trial_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_probes")),
        sa.UniqueConstraint("trial_id", "stage", "probe_id", name=op.f("uq_probes_trial_id")),
    )


def _create_metric_points() -> None:
    op.create_table(
        "metric_points",
        sa.Column("trial_id", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("step", _INT, nullable=False),
        sa.Column("seconds", sa.Double(), nullable=False),
        sa.Column("value", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(
            ["trial_id"], ["trials.id"], name=op.f("fk_metric_points_trial_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("trial_id", "name", "step", name=op.f("pk_metric_points")),
        sqlite_with_rowid=False,
    )


def _create_idempotency_keys() -> None:
    op.create_table(
        "idempotency_keys",
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("job_id", sa.String(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_idempotency_keys_job_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_idempotency_keys")),
    )


def _create_api_keys() -> None:
    op.create_table(
        "api_keys",
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_api_keys")),
    )
