"""Jobs sweep over parameters: trials are samples, and tell what they measured at rungs.

Revision: 0017
"""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

_WHOLE = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.add_column("trials", sa.Column("sample", sa.JSON(), nullable=True))
    op.create_table(
        "rungs",
        sa.Column("id", _WHOLE, nullable=False),
        sa.Column("trial_id", sa.String(), nullable=False),
        sa.Column("rung", _WHOLE, nullable=False),
        sa.Column("step", _WHOLE, nullable=False),
        sa.Column("seconds", sa.Double(), nullable=False),
        sa.Column("bytes_sent", _WHOLE, nullable=False),
        sa.Column("value", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["trial_id"], ["trials.id"], name=op.f("fk_rungs_trial_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_rungs")),
        sa.UniqueConstraint("trial_id", "rung", name=op.f("uq_rungs_trial_id")),
    )


def downgrade() -> None:
    op.drop_table("rungs")
    op.drop_column("trials", "sample")
