"""The state of a search that was cut off, and the number of workers that a job was submitted with.

Revision: 0008
"""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    whole = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.add_column("jobs", sa.Column("first_workers", whole, nullable=True))
    op.add_column("trials", sa.Column("searching", sa.JSON(none_as_null=True), nullable=True))


def downgrade() -> None:
    op.drop_column("trials", "searching")
    op.drop_column("jobs", "first_workers")
