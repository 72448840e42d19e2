"""Probes say when they ended, and jobs what they are clones of.

Revision: 0016
"""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("source", sa.String(), nullable=True))
    op.add_column("probes", sa.Column("ended_s", sa.Double(), nullable=True))


def downgrade() -> None:
    op.drop_column("probes", "ended_s")
    op.drop_column("jobs", "source")
