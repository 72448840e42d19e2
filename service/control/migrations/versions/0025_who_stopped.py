"""A job that was stopped early says by whom.

Revision: 0025
"""

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("stopped_by", sa.String(), nullable=True))
    op.execute("update jobs set stopped_by = 'the user' where stops")
    op.drop_column("jobs", "stops")


def downgrade() -> None:
    op.add_column("jobs", sa.Column("stops", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.execute("update jobs set stops = true where stopped_by is not null")
    op.drop_column("jobs", "stopped_by")
