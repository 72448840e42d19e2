"""A paused job's deadline moves once, and a job's samples learn from the jobs that its submitter sees.

Revision: 0027
"""

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None

_NEW = ("deadline_moved", "sees_all")


def upgrade() -> None:
    for name in _NEW:
        op.add_column("jobs", sa.Column(name, sa.Boolean(), nullable=False, server_default=sa.false()))


def downgrade() -> None:
    for name in _NEW:
        op.drop_column("jobs", name)
