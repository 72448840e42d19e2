"""The queue: priorities, what jobs have waited and attempts take, quotas, and what projects have used.

Revision: 0014
"""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

_WHOLE = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.add_column("jobs", sa.Column("first_priority", sa.String(), nullable=True))
    op.add_column("jobs", sa.Column("priority", sa.String(), nullable=False, server_default="normal"))
    op.add_column("jobs", sa.Column("queued_at", sa.Double(), nullable=False, server_default="0"))
    op.add_column("jobs", sa.Column("waited_s", sa.Double(), nullable=False, server_default="0"))
    op.add_column("jobs", sa.Column("preempted_by", sa.String(), nullable=True))
    op.execute("update jobs set queued_at = created_at")
    for name in ("cpus", "gpus"):
        op.add_column("attempts", sa.Column(name, sa.Double(), nullable=True))
    for name in ("workers", "trials"):
        op.add_column("attempts", sa.Column(name, _WHOLE, nullable=True))
    op.create_table(
        "quotas",
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("workers", _WHOLE, nullable=True),
        sa.Column("gpus", sa.Double(), nullable=True),
        sa.Column("running", _WHOLE, nullable=True),
        sa.Column("weight", sa.Double(), nullable=False),
        sa.Column("set_by", sa.String(), nullable=False),
        sa.Column("set_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("kind", "name", name=op.f("pk_quotas")),
    )
    op.create_table(
        "project_usage",
        sa.Column("project", sa.String(), nullable=False),
        sa.Column("cpu_s", sa.Double(), nullable=False),
        sa.Column("gpu_s", sa.Double(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("project", name=op.f("pk_project_usage")),
    )


def downgrade() -> None:
    op.drop_table("project_usage")
    op.drop_table("quotas")
    for name in ("trials", "workers", "gpus", "cpus"):
        op.drop_column("attempts", name)
    for name in ("preempted_by", "waited_s", "queued_at", "priority", "first_priority"):
        op.drop_column("jobs", name)
