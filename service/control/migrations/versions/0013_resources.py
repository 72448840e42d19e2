"""Jobs have notes, can be archived, and can be deleted, which their last event and their folder outlive.

Revision: 0013
"""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

#: SQLite makes the table anew, and would give the id of a deleted newest row again.
_EVENTS = {"sqlite_autoincrement": True}


def upgrade() -> None:
    op.add_column("jobs", sa.Column("first_labels", sa.JSON(), nullable=True))
    op.add_column("jobs", sa.Column("notes", sa.String(), nullable=False, server_default=""))
    op.add_column("jobs", sa.Column("archived", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.create_index("ix_jobs_archived_id", "jobs", ["archived", "id"])
    op.create_index("ix_jobs_name_id", "jobs", ["name", "id"])
    with op.batch_alter_table("events", table_kwargs=_EVENTS) as batch:
        batch.drop_constraint("fk_events_job_id", type_="foreignkey")
        batch.add_column(sa.Column("project", sa.String(), nullable=False, server_default="default"))
    op.execute("update events set project = (select project from jobs where jobs.id = events.job_id)")
    op.create_index("ix_messages_job_id", "messages", ["job_id"])
    op.create_index("ix_idempotency_keys_job_id", "idempotency_keys", ["job_id"])
    op.create_table(
        "removals",
        sa.Column("job_id", sa.String(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", name=op.f("pk_removals")),
    )


def downgrade() -> None:
    op.drop_table("removals")
    op.drop_index("ix_idempotency_keys_job_id", "idempotency_keys")
    op.drop_index("ix_messages_job_id", "messages")
    op.execute("delete from events where job_id not in (select id from jobs)")
    with op.batch_alter_table("events", table_kwargs=_EVENTS) as batch:
        batch.drop_column("project")
        batch.create_foreign_key("fk_events_job_id", "jobs", ["job_id"], ["id"], ondelete="CASCADE")
    op.drop_index("ix_jobs_name_id", "jobs")
    op.drop_index("ix_jobs_archived_id", "jobs")
    for column in ("archived", "notes", "first_labels"):
        op.drop_column("jobs", column)
