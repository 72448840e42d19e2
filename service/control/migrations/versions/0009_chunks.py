"""Points of long series move into compressed chunks; their rows go.

Revision: 0009
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.orm import Session

from service.control.metrics import points

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    whole = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "metric_chunks",
        sa.Column("trial_id", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("level", whole, nullable=False),
        sa.Column("first_step", whole, nullable=False),
        sa.Column("last_step", whole, nullable=False),
        sa.Column("num_points", whole, nullable=False),
        sa.Column("least", sa.Double(), nullable=True),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["trial_id"], ["trials.id"], name=op.f("fk_metric_chunks_trial_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("trial_id", "name", "level", "first_step", name=op.f("pk_metric_chunks")),
    )
    rows = sa.table("metric_points", sa.column("trial_id"), sa.column("name"))
    with Session(op.get_bind()) as session:
        for key in session.execute(sa.select(rows.c.trial_id, rows.c.name).distinct()).all():
            points.pack(session, points.Key(*key))
        session.flush()


def downgrade() -> None:
    with Session(op.get_bind()) as session:
        points.unpack_all(session)
    op.drop_table("metric_chunks")
