"""The past searches that a trial may learn from.

Revision: 0005
"""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("trials", sa.Column("prior", sa.JSON(none_as_null=True), nullable=True))


def downgrade() -> None:
    op.drop_column("trials", "prior")
