"""The past searches that a trial may learn from.

Revision: 0006
"""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("trials", sa.Column("prior", sa.JSON(none_as_null=True), nullable=True))


def downgrade() -> None:
    op.drop_column("trials", "prior")
