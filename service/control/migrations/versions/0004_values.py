"""Values of a stage and its probes besides learning rate and level.

Revision: 0004
"""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_TABLES = ("stages", "probes")


def upgrade() -> None:
    for table in _TABLES:
        op.add_column(table, sa.Column("values", sa.JSON(none_as_null=True), nullable=False, server_default="{}"))


def downgrade() -> None:
    for table in _TABLES:
        op.drop_column(table, "values")
