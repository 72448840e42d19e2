"""A job whose extension waits for its next attempt keeps what it had before.

Revision: 0028
"""

import sqlalchemy as sa
from alembic import op

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("before_extension", sa.JSON(none_as_null=True), nullable=True))


def downgrade() -> None:
    op.drop_column("jobs", "before_extension")
