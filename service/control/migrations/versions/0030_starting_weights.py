"""A job keeps where the weights are that it starts from, if another job has exported them.

Revision: 0030
"""

import sqlalchemy as sa
from alembic import op

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("starting_weights", sa.JSON(none_as_null=True), nullable=True))


def downgrade() -> None:
    op.drop_column("jobs", "starting_weights")
