"""The attempts whose log is still to be kept are found by an index: every loop asks for them, and they are few.

Revision: 0022
"""

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index(
        op.f("ix_attempts_without_log"),
        "attempts",
        ["job_id", "number"],
        sqlite_where=sa.text("log_kept IS 0"),
        postgresql_where=sa.text("log_kept IS false"),
    )


def downgrade() -> None:
    op.drop_index(op.f("ix_attempts_without_log"), "attempts")
