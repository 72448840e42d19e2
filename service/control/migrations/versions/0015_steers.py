"""People steer running controllers.

Revision: 0015
"""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

_WHOLE = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.add_column("jobs", sa.Column("num_steers", _WHOLE, nullable=False, server_default="0"))
    op.create_table(
        "steers",
        sa.Column("job_id", sa.String(), nullable=False),
        sa.Column("id", _WHOLE, autoincrement=False, nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("key_id", sa.String(), nullable=True),
        sa.Column("said", sa.JSON(), nullable=False),
        sa.Column("withdrawn_at", sa.Double(), nullable=True),
        sa.Column("withdrawn_by", sa.String(), nullable=True),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_steers_job_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job_id", "id", name=op.f("pk_steers")),
    )


def downgrade() -> None:
    op.drop_table("steers")
    op.drop_column("jobs", "num_steers")
