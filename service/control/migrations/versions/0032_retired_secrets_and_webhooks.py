"""A rotated key's old secret may be accepted for a while; a job keeps the webhook that it was submitted with.

Revision: 0032
"""

import sqlalchemy as sa
from alembic import op

revision = "0032"
down_revision = "0031"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("first_webhook", sa.JSON(none_as_null=True), nullable=True))
    op.create_table(
        "retired_secrets",
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("key_id", sa.String(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["key_id"], ["api_keys.id"], name=op.f("fk_retired_secrets_key_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_retired_secrets")),
    )
    op.create_index("ix_retired_secrets_key_id", "retired_secrets", ["key_id"], unique=False)


def downgrade() -> None:
    op.drop_table("retired_secrets")
    op.drop_column("jobs", "first_webhook")
