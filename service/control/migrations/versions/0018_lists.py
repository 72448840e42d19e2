"""Lists are ordered by when jobs ended from an index, and words are looked for in small rows.

Revision: 0018
"""

from collections import defaultdict

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

_JOBS = sa.table("jobs", sa.column("id"), sa.column("name"), sa.column("notes"))
_LABELS = sa.table("job_labels", sa.column("job_id"), sa.column("name"), sa.column("value"))


def upgrade() -> None:
    op.create_index(op.f("ix_jobs_finished_id"), "jobs", [sa.text("coalesce(finished_at, 1000000000000.0)"), "id"])
    texts = op.create_table(
        "job_texts",
        sa.Column("job_id", sa.String(), nullable=False),
        sa.Column("text", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_job_texts_job_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job_id", name=op.f("pk_job_texts")),
        sqlite_with_rowid=False,
    )
    # Python knows the lower case of every letter, SQLite that of ASCII alone.
    lines: defaultdict[str, list[str]] = defaultdict(list)
    for job_id, *words in op.get_bind().execute(sa.union_all(sa.select(_JOBS), sa.select(_LABELS))):
        lines[job_id] += words
    op.bulk_insert(texts, [{"job_id": each, "text": "\n".join(words).lower()} for each, words in lines.items()])


def downgrade() -> None:
    op.drop_table("job_texts")
    op.drop_index(op.f("ix_jobs_finished_id"), "jobs")
