"""Idempotency keys are of one owner in one project, and deleted code outlives its row until its file is gone.

Revision: 0019
"""

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None

#: SQLite makes the table anew. It need not look at `jobs` for that, whose index of an expression it warns of.
_ALONE = {"resolve_fks": False}


def upgrade() -> None:
    with op.batch_alter_table("idempotency_keys", reflect_kwargs=_ALONE) as batch:
        batch.add_column(sa.Column("project", sa.String(), nullable=False, server_default="default"))
        batch.drop_constraint("pk_idempotency_keys", type_="primary")
        batch.create_primary_key("pk_idempotency_keys", ["project", "owner", "key"])
    job = "from jobs where jobs.id = job_id"
    op.execute(f"update idempotency_keys set project = (select project {job}) where exists (select 1 {job})")
    op.create_table(
        "code_removals",
        sa.Column("project", sa.String(), nullable=False),
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("project", "digest", name=op.f("pk_code_removals")),
    )


def downgrade() -> None:
    op.drop_table("code_removals")
    # Owners of two projects may have used the same one; the older schema would answer one with the other's job.
    shared = "select owner, key from idempotency_keys group by owner, key having count(*) > 1"
    op.execute(f"delete from idempotency_keys where (owner, key) in ({shared})")
    with op.batch_alter_table("idempotency_keys", reflect_kwargs=_ALONE) as batch:
        batch.drop_constraint("pk_idempotency_keys", type_="primary")
        batch.create_primary_key("pk_idempotency_keys", ["owner", "key"])
        batch.drop_column("project")
