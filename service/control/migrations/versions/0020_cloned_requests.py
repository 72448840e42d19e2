"""An idempotency key keeps the digest of the clone that was asked for: its source may change before it is repeated.

Revision: 0020
"""

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("idempotency_keys", sa.Column("request", sa.String(), nullable=True))


def downgrade() -> None:
    op.drop_column("idempotency_keys", "request")
