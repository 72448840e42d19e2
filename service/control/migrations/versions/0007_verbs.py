"""Requests to a job: an early end, another round of attempts, a larger budget.

Revision: 0007
"""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    whole = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.add_column("jobs", sa.Column("attempts_before", whole, nullable=False, server_default="0"))
    op.add_column("jobs", sa.Column("stops", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.add_column("jobs", sa.Column("first_budget", sa.JSON(none_as_null=True), nullable=True))
    op.add_column("trials", sa.Column("steady", sa.JSON(none_as_null=True), nullable=True))


def downgrade() -> None:
    op.drop_column("trials", "steady")
    for name in ("first_budget", "stops", "attempts_before"):
        op.drop_column("jobs", name)
