"""Sessions go on while they are used, and an issuer's visitor has one without a key.

Revision: 0026
"""

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None

_WHO = ("name", "role", "project")


def upgrade() -> None:
    with op.batch_alter_table("sessions") as batch:
        batch.alter_column("key_id", existing_type=sa.String(), nullable=True)
        for name in _WHO:
            batch.add_column(sa.Column(name, sa.String(), nullable=True))
        batch.add_column(sa.Column("ends_at", sa.Double(), nullable=False, server_default="0"))
    op.execute("update sessions set ends_at = expires_at")


def downgrade() -> None:
    op.execute("delete from sessions where key_id is null")
    with op.batch_alter_table("sessions") as batch:
        for name in ("ends_at", *_WHO):
            batch.drop_column(name)
        batch.alter_column("key_id", existing_type=sa.String(), nullable=False)
