"""A person stops one trial of a job, and a job ends once it has held its workers for as long as it may.

Revision: 0029
"""

import sqlalchemy as sa
from alembic import op

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None

_HOLDING = ("jobs", "attempts")


def upgrade() -> None:
    op.add_column("trials", sa.Column("stopped_by", sa.String(), nullable=True))
    for table in _HOLDING:
        op.add_column(table, sa.Column("held_s", sa.Double(), nullable=False, server_default="0"))


def downgrade() -> None:
    for table in _HOLDING:
        op.drop_column(table, "held_s")
    op.drop_column("trials", "stopped_by")
