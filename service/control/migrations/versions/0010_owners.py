"""Keys have owners, roles and projects; so do jobs. Sessions of the page; the audit log.

A key of an earlier release opened everything: it becomes an admin's. Jobs become those of the first key.

Revision: 0010
"""

import secrets
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

_INT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.add_column("jobs", sa.Column("owner", sa.String(), nullable=False, server_default="first"))
    op.add_column("jobs", sa.Column("project", sa.String(), nullable=False, server_default="default"))
    op.create_index("ix_jobs_project_id", "jobs", ["project", "id"], unique=False)
    with op.batch_alter_table("idempotency_keys") as batch:
        batch.add_column(sa.Column("owner", sa.String(), nullable=False, server_default="first"))
        batch.drop_constraint("pk_idempotency_keys", type_="primary")
        batch.create_primary_key("pk_idempotency_keys", ["owner", "key"])
    known = _take_keys()
    _create_keys()
    if known:
        op.bulk_insert(
            _KEYS,
            [
                {
                    "id": f"key-{secrets.token_hex(6)}",
                    "digest": digest,
                    "name": name,
                    "owner": name,
                    "role": "admin",
                    "project": "default",
                    "created_by": name,
                    "created_at": created_at,
                }
                for digest, name, created_at in map(tuple, known)
            ],
        )
    _create_sessions("sign_in_codes")
    _create_sessions("sessions")
    _create_audit()


def downgrade() -> None:
    for table in ("audit", "sessions", "sign_in_codes"):
        op.drop_table(table)
    known = _take_keys()
    _create_old_keys()
    if known:
        op.bulk_insert(_OLD_KEYS, [dict(zip(("digest", "name", "created_at"), row, strict=True)) for row in known])
    # Two owners may have used the same one; whose it was is not known any more.
    op.execute("delete from idempotency_keys")
    with op.batch_alter_table("idempotency_keys") as batch:
        batch.drop_constraint("pk_idempotency_keys", type_="primary")
        batch.create_primary_key("pk_idempotency_keys", ["key"])
        batch.drop_column("owner")
    op.drop_index("ix_jobs_project_id", "jobs")
    op.drop_column("jobs", "project")
    op.drop_column("jobs", "owner")


_OLD_KEYS = sa.table(
    "api_keys", sa.column("digest", sa.String), sa.column("name", sa.String), sa.column("created_at", sa.Double)
)
_KEYS = sa.table(
    "api_keys",
    *(sa.column(name, sa.String) for name in ("id", "digest", "name", "owner", "role", "project", "created_by")),
    sa.column("created_at", sa.Double),
)


def _take_keys() -> Sequence[sa.Row[Any]]:
    """Drop the table, since SQLite cannot give it another key; return digest, name and time of what it held."""
    known = op.get_bind().execute(sa.select(_OLD_KEYS)).all()
    op.drop_table("api_keys")
    return known


def _create_keys() -> None:
    op.create_table(
        "api_keys",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("owner", sa.String(), nullable=False),
        sa.Column("role", sa.String(), nullable=False),
        sa.Column("project", sa.String(), nullable=False),
        sa.Column("created_by", sa.String(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=True),
        sa.Column("revoked_at", sa.Double(), nullable=True),
        sa.Column("last_used_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_api_keys")),
        sa.UniqueConstraint("digest", name=op.f("uq_api_keys_digest")),
    )


def _create_old_keys() -> None:
    op.create_table(
        "api_keys",
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_api_keys")),
    )


def _create_sessions(table: str) -> None:
    op.create_table(
        table,
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("key_id", sa.String(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["key_id"], ["api_keys.id"], name=op.f(f"fk_{table}_key_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("digest", name=op.f(f"pk_{table}")),
    )
    op.create_index(f"ix_{table}_key_id", table, ["key_id"], unique=False)


def _create_audit() -> None:
    op.create_table(
        "audit",
        sa.Column("id", _INT, nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("key_id", sa.String(), nullable=True),
        sa.Column("address", sa.String(), nullable=False),
        sa.Column("action", sa.String(), nullable=False),
        sa.Column("target", sa.String(), nullable=False),
        sa.Column("outcome", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit")),
    )
