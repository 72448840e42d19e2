"""Record that an attempt's log was taken over from Ray.

Revision: 0003
"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_ATTEMPTS = sa.table("attempts", sa.column("ended_at", sa.Double()), sa.column("log_kept", sa.Boolean()))


def upgrade() -> None:
    op.add_column("attempts", sa.Column("log_kept", sa.Boolean(), nullable=False, server_default=sa.false()))
    ended = _ATTEMPTS.c.ended_at.is_not(None)  # nobody kept their logs
    op.execute(sa.update(_ATTEMPTS).where(ended).values(log_kept=True))


def downgrade() -> None:
    op.drop_column("attempts", "log_kept")
