"""What a stage's commit reached, and the posterior it was decided by.

Revision: 0004
"""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("stages", sa.Column("loss", sa.Double(), nullable=True))
    op.add_column("stages", sa.Column("posterior", sa.JSON(none_as_null=True), nullable=True))


def downgrade() -> None:
    op.drop_column("stages", "posterior")
    op.drop_column("stages", "loss")
