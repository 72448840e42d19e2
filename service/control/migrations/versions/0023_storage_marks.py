"""The service remembers in which folders of storage it has left its mark: one without it is not mounted.

Revision: 0023
"""

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "marks",
        sa.Column("url", sa.String(), nullable=False),
        sa.Column("left_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("url", name=op.f("pk_marks")),
    )


def downgrade() -> None:
    op.drop_table("marks")
