"""A quota bounds how many jobs may wait.

Revision: 0021
"""

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None

_WHOLE = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.add_column("quotas", sa.Column("waiting", _WHOLE, nullable=True))


def downgrade() -> None:
    op.drop_column("quotas", "waiting")
