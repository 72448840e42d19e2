"""The result of a stage's commit, and the posterior it was decided by.

Revision: 0005
"""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("stages", sa.Column("loss", sa.Double(), nullable=True))
    op.add_column("stages", sa.Column("posterior", sa.JSON(none_as_null=True), nullable=True))


def downgrade() -> None:
    op.drop_column("stages", "posterior")
    op.drop_column("stages", "loss")
