"""Keys of users, and the sessions that browsers open with them. Only digests are stored."""

import secrets
from dataclasses import replace
from typing import Any

from sqlalchemy import Row, Select, bindparam, delete, exists, func, or_, select, update
from sqlalchemy.orm import Session

from service.control.access import audit, keys
from service.control.access.audit import EVERY_ENTRY, AuditFilter
from service.control.access.rules import RULES, Action, Owned, Principal, may
from service.control.database.session import Database
from service.control.models import ApiKeyRow, RetiredSecretRow, SessionRow, SignInCodeRow
from service.control.moments import moment, moment_or_none
from service.errors import Forbidden, KeyGone, NotFound, Unauthorized
from service.wire.access import AuditPage, IssuedKey, KeyView, NewKey, Role, SignInCode

#: A person reads the terminal and opens the link.
CODE_S = 300.0
#: A session that nobody uses ends after this, and one that an issuer's token opened does in any case ...
SESSION_S = 12 * 3600.0
#: ... while one that a key opened and somebody uses goes on, up to this age.
MAX_SESSION_S = 7 * 24 * 3600.0
#: Valid ones of one owner and project, unless an admin makes them: else any viewer could fill the database.
MAX_OWN_KEYS = 100
#: Rotated secrets of a key that are accepted at once: programs use the last one, or a few if answers were lost.
MAX_RETIRED_SECRETS = 10
_RENEW_EVERY_S = 3600.0
_NOTE_USE_EVERY_S = 60.0
_NOTE_REFUSALS_EVERY_S = 60.0
_HOLDER = select(
    ApiKeyRow.id, ApiKeyRow.owner, ApiKeyRow.role, ApiKeyRow.project, ApiKeyRow.expires_at, ApiKeyRow.revoked_at
)
# Every request asks one of these: made once, they cost half.
_BY_KEY = _HOLDER.where(ApiKeyRow.digest == bindparam("digest"))
_BY_RETIRED = (
    _HOLDER.add_columns(RetiredSecretRow.expires_at.label("ends_at"))
    .join(RetiredSecretRow, RetiredSecretRow.key_id == ApiKeyRow.id)
    .where(RetiredSecretRow.digest == bindparam("digest"), RetiredSecretRow.expires_at > bindparam("now"))
)
_BY_SESSION = (
    select(
        ApiKeyRow.id,
        func.coalesce(ApiKeyRow.owner, SessionRow.name).label("owner"),
        func.coalesce(ApiKeyRow.role, SessionRow.role).label("role"),
        func.coalesce(ApiKeyRow.project, SessionRow.project).label("project"),
        ApiKeyRow.expires_at,
        ApiKeyRow.revoked_at,
        SessionRow.expires_at.label("session_expires_at"),
        SessionRow.ends_at,
    )
    .select_from(SessionRow)
    .outerjoin(ApiKeyRow, SessionRow.key_id == ApiKeyRow.id)
    .where(SessionRow.digest == bindparam("digest"), SessionRow.expires_at > bindparam("now"))
)


class KeyRing:
    """Makes, finds and ends keys, one-time codes and sessions. Thread-safe.

    Each of its reads is one statement, which needs no transaction.
    """

    def __init__(self, db: Database) -> None:
        self._db = db
        self._noted: dict[str, float] = {}  # when the use of a key was last written, by its id
        self._given: str | None = None  # the digest of the key that the operator gives in a file
        self._minute, self._refused = 0.0, set[tuple[str, str, str, str]]()  # whom, where, what in that minute

    # Keys

    def create(self, new: NewKey, *, by: Principal) -> IssuedKey:
        """Make a key; its secret is in the answer alone. Raises Forbidden unless `by` may make it, and logs that."""
        if (why := self._refusal(new, by)) is not None:
            self.note_refusal("createKey", "", by=by)
            raise Forbidden(why)
        secret = keys.new_key()
        return self._db.write(lambda session: self._add(session, new, secret, by))

    def _refusal(self, new: NewKey, by: Principal) -> str | None:
        """Return why `by` may not make this key; None: they may."""
        if may(by, Action.CREATE_KEY):
            return None
        if not may(by, Action.CREATE_OWN_KEY, Owned(new.owner or new.name, new.project, new.role)):
            allowed = f"owner `{by.name}`, project `{by.project}`, role {by.role} or a weaker one"
            return f"your role here, {by.role}, may create only keys of your own: {allowed}"
        if by.key_id is None:
            return "an issuer named you, and a key would outlast your token: ask an admin for one"
        ends = min(filter(None, (self.get(by.key_id).expires_at, moment_or_none(by.ends_at))), default=None)
        if ends is not None and (new.expires_at is None or new.expires_at > ends):
            of = "key" if by.ends_at is None else "session, or a secret that was rotated,"
            return f"a {of} makes no key that lasts longer: `expires_at` is at the latest {ends.isoformat()}"
        if self._num_valid(by) >= MAX_OWN_KEYS:
            return f"you have {MAX_OWN_KEYS} keys in project `{by.project}`: revoke those that you do not use"
        return None

    def _num_valid(self, by: Principal) -> int:
        """Return the number of valid keys of an owner in their project."""
        is_valid = (
            ApiKeyRow.revoked_at.is_(None),
            or_(ApiKeyRow.expires_at.is_(None), ApiKeyRow.expires_at > self._db.now()),
        )
        with self._db.asking() as session:
            own = select(func.count()).where(ApiKeyRow.owner == by.name, ApiKeyRow.project == by.project, *is_valid)
            return session.scalar(own) or 0

    def adopt(self, secret: str, new: NewKey, *, by: Principal) -> None:
        """Make a key of a `secret` that several replicas are given; nothing if there is one, which may be revoked."""
        self._given = keys.digest(secret)
        is_known = exists().where(ApiKeyRow.digest == self._given)

        def adopt(session: Session) -> None:
            if not session.scalar(select(is_known)):
                self._add(session, new, secret, by)

        self._db.write(adopt)

    def _add(self, session: Session, new: NewKey, secret: str, by: Principal) -> IssuedKey:
        now = self._db.now()
        row = ApiKeyRow(
            id=f"key-{secrets.token_hex(6)}",
            digest=keys.digest(secret),
            name=new.name,
            owner=new.owner or new.name,
            role=new.role.value,
            project=new.project,
            created_at=now,
            created_by=by.name,
            expires_at=None if new.expires_at is None else new.expires_at.timestamp(),
        )
        session.add(row)
        audit.add(session, by, "createKey", row.id, now=now)
        return IssuedKey(key=_view(row), secret=secret)

    def list(self, *, by: Principal) -> tuple[KeyView, ...]:
        """Return the keys that `by` may see, oldest first."""
        query = select(ApiKeyRow).order_by(ApiKeyRow.created_at, ApiKeyRow.id)
        if by.role.rank < RULES[Action.READ_KEY].elsewhere.rank:
            query = query.where(ApiKeyRow.owner == by.name, ApiKeyRow.project == by.project)
        with self._db.asking() as session:
            views = [_view(row) for row in session.scalars(query)]
        return tuple(view for view in views if view.role.rank <= by.role.rank)

    def get(self, key_id: str) -> KeyView:
        """Return one key; raises NotFound."""
        with self._db.asking() as session:
            return _view(_require(session, key_id))

    def owner_of(self, key_id: str) -> Owned:
        """Return whose key it is; raises NotFound."""
        key = self.get(key_id)
        return Owned(key.owner, key.project, key.role)

    def rotate(self, key_id: str, *, by: Principal, grace_s: float = 0.0) -> IssuedKey:
        """Give the key another secret, and end sessions that it opened. Raises KeyGone.

        The old secret is accepted for `grace_s` longer. Without a grace it ends at once, and so do older ones.
        """
        secret = keys.new_key()

        def rotate(session: Session) -> IssuedKey:
            row, now = _require(session, key_id), self._db.now()
            if (why := _gone(row.expires_at, row.revoked_at, now)) is not None:
                raise KeyGone(f"key `{key_id}` {why}: create another")
            if row.digest == self._given:  # the next start would adopt its old secret again
                raise KeyGone(
                    f"key `{key_id}` is that of the file `wiretune_api_key`: put another into the file, restart, and "
                    "revoke this one"
                )
            is_over = RetiredSecretRow.key_id == key_id if grace_s == 0 else RetiredSecretRow.expires_at <= now
            session.execute(delete(RetiredSecretRow).where(is_over))
            until = now + grace_s if grace_s else None
            if until is not None:
                _leave_room(session, key_id)
                session.add(RetiredSecretRow(digest=row.digest, key_id=key_id, expires_at=until))
            row.digest = keys.digest(secret)
            _end_sessions(session, key_id)
            audit.add(session, by, "rotateKey", key_id, now=now)
            return IssuedKey(key=_view(row), secret=secret, old_until=moment_or_none(until))

        return self._db.write(rotate)

    def revoke(self, key_id: str, *, by: Principal) -> KeyView:
        """End the key, and sessions that it opened, for ever."""

        def revoke(session: Session) -> KeyView:
            row = _require(session, key_id)
            if row.revoked_at is None:
                row.revoked_at = self._db.now()
                _end_sessions(session, key_id)
                audit.add(session, by, "revokeKey", key_id, now=row.revoked_at)
            return _view(row)

        return self._db.write(revoke)

    # Callers

    def holder(self, secret: str) -> Principal:
        """Return who holds the key; raises Unauthorized. A secret that was rotated may still be accepted."""
        digest, ends_at = keys.digest(secret), None
        try:
            found = self._found(_BY_KEY, {"digest": digest}, what="API key")
        except Unauthorized:
            found = self._found(_BY_RETIRED, {"digest": digest, "now": self._db.now()}, what="API key")
            ends_at = found.ends_at
        return replace(self._admitted(found), ends_at=ends_at)

    def visitor(self, secret: str, *, renews: bool = True) -> Principal:
        """Return who opened the session; raises Unauthorized. Its use renews it, unless not `renews`."""
        digest = keys.digest(secret)
        found = self._found(_BY_SESSION, {"digest": digest, "now": self._db.now()}, what="session")
        caller = replace(self._admitted(found), ends_at=found.ends_at)
        if renews:
            self._renew(digest, found.session_expires_at, found.ends_at)
        return caller

    def _found(self, query: "Select[*tuple[Any, ...]]", given: dict[str, Any], *, what: str) -> "Row[*tuple[Any, ...]]":
        with self._db.asking() as session:
            found = session.connection().execute(query, given).one_or_none()
        if found is None:
            raise Unauthorized(f"this {what} is not known here")
        return found

    def _admitted(self, found: "Row[*tuple[Any, ...]]") -> Principal:
        """Return who was found, unless by a key that opens nothing any more."""
        if (why := _gone(found.expires_at, found.revoked_at, self._db.now())) is not None:
            raise Unauthorized(f"key `{found.id}` {why}")
        if found.id is not None and self._is_due(found.id, every_s=_NOTE_USE_EVERY_S):
            used = update(ApiKeyRow).where(ApiKeyRow.id == found.id).values(last_used_at=self._db.now())
            self._db.post(lambda session: session.execute(used))
        return _principal_of(found)

    def _renew(self, digest: str, expires_at: float, ends_at: float) -> None:
        """Let a session that is used go on, once an hour."""
        until = min(self._db.now() + SESSION_S, ends_at)
        if until - expires_at >= _RENEW_EVERY_S and self._is_due(digest, every_s=_NOTE_USE_EVERY_S):
            renewed = update(SessionRow).where(SessionRow.digest == digest).values(expires_at=until)
            self._db.post(lambda session: session.execute(renewed))

    def _is_due(self, noted: str, *, every_s: float) -> bool:
        """Return whether to write a note again. A request neither waits for the write nor fails with it."""
        now = self._db.now()
        if abs(now - self._noted.get(noted, 0.0)) < every_s:  # the clock may be set back
            return False
        self._noted[noted] = now
        return True

    # Sessions

    def add_code(self, *, by: Principal) -> SignInCode:
        """Return a code that opens one session for the holder of `by`'s key. Raises Forbidden where there is none.

        It also refuses sessions and secrets that were rotated: the new session would outlast them.
        """
        if by.key_id is None:
            raise Forbidden("a code is for the holder of a key; the page signs you in at the issuer, if it is set up")
        if by.ends_at is not None:
            raise Forbidden("a code is for the holder of the key itself, not of a session or a secret that was rotated")
        code, now = secrets.token_urlsafe(24), self._db.now()
        row = SignInCodeRow(digest=keys.digest(code), key_id=by.key_id, expires_at=now + CODE_S)

        def add(session: Session) -> None:
            for table in (SignInCodeRow, SessionRow):
                session.execute(delete(table).where(table.expires_at <= now))
            session.add(row)

        self._db.write(add)
        return SignInCode(code=code, expires_at=moment(now + CODE_S))

    def open_session(self, code: str, *, address: str) -> str:
        """Use up a code and return a session's secret; raises Unauthorized.

        The code is read before it is written: anybody may send wrong codes, and the one writer has no time for them.
        """
        secret, now = secrets.token_urlsafe(32), self._db.now()
        is_good = (SignInCodeRow.digest == keys.digest(code), SignInCodeRow.expires_at > now)

        def open_session(session: Session) -> bool:
            key_id = session.scalar(delete(SignInCodeRow).where(*is_good).returning(SignInCodeRow.key_id))
            if key_id is None:  # somebody else used it meanwhile
                return False
            session.add(_session_row(secret, now=now, most_s=MAX_SESSION_S, key_id=key_id))
            holder = session.execute(_HOLDER.where(ApiKeyRow.id == key_id)).one()
            audit.add(session, _principal_of(holder, address=address), "createSession", key_id, now=now)
            return True

        with self._db.asking() as session:
            is_known = session.scalar(select(SignInCodeRow.key_id).where(*is_good)) is not None
        if not (is_known and self._db.write(open_session)):
            raise Unauthorized("this code was used, or is too old: ask for another with `wiretune page`")
        return secret

    def open_session_of(self, visitor: Principal) -> str:
        """Open a session for a visitor whom the issuer named, and return its secret."""
        secret = secrets.token_urlsafe(32)

        def open_session(session: Session) -> None:
            now = self._db.now()
            session.execute(delete(SessionRow).where(SessionRow.expires_at <= now))
            who = {"name": visitor.name, "role": visitor.role.value, "project": visitor.project}
            session.add(_session_row(secret, now=now, most_s=SESSION_S, **who))
            audit.add(session, visitor, "createSession", visitor.name, now=now)

        self._db.write(open_session)
        return secret

    def close_session(self, secret: str) -> None:
        """End a session; nothing if there is none."""
        statement = delete(SessionRow).where(SessionRow.digest == keys.digest(secret))
        self._db.write(lambda session: session.execute(statement))

    # The audit log

    def note_refusal(self, action: str, target: str, *, by: Principal) -> None:
        """Have it written that the role of `by` did not allow `action`; the answer does not wait for that.

        Of refusals alike, from one address, one a minute is written: else a script with a weak key would fill the log.
        A `target` is empty or exists, so that a caller cannot invent new ones.
        """
        now = self._db.now()
        if (minute := now // _NOTE_REFUSALS_EVERY_S) != self._minute:
            self._minute, self._refused = minute, set()
        alike = (by.key_id or by.name, by.address, action, target)
        if alike in self._refused:
            return
        self._refused.add(alike)
        self._db.post(lambda session: audit.add(session, by, action, target, now=now, outcome=audit.REFUSED))

    def audit(self, where: AuditFilter = EVERY_ENTRY, *, limit: int, cursor: int | None = None) -> AuditPage:
        """Return a page of the audit log, newest first."""
        with self._db.asking() as session:
            return audit.page(session, where, limit=limit, cursor=cursor)


def _require(session: Session, key_id: str) -> ApiKeyRow:
    row = session.get(ApiKeyRow, key_id)
    if row is None:
        raise NotFound(f"there is no key `{key_id}`")
    return row


def _leave_room(session: Session, key_id: str) -> None:
    """Delete those of a key's rotated secrets that end first, so that it may have another one."""
    of_key = RetiredSecretRow.key_id == key_id
    last = select(RetiredSecretRow.digest).where(of_key).order_by(RetiredSecretRow.expires_at.desc())
    kept = last.limit(MAX_RETIRED_SECRETS - 1)
    session.execute(delete(RetiredSecretRow).where(of_key, RetiredSecretRow.digest.not_in(kept)))


def _end_sessions(session: Session, key_id: str) -> None:
    for table in (SignInCodeRow, SessionRow):
        session.execute(delete(table).where(table.key_id == key_id))


def _session_row(secret: str, *, now: float, most_s: float, **of_whom: str) -> SessionRow:
    return SessionRow(digest=keys.digest(secret), expires_at=now + SESSION_S, ends_at=now + most_s, **of_whom)


def _gone(expires_at: float | None, revoked_at: float | None, now: float) -> str | None:
    """Return why a key opens nothing any more; None: it does."""
    if revoked_at is not None:
        return "was revoked"
    return "has expired" if expires_at is not None and expires_at <= now else None


def _principal_of(row: "Row[*tuple[Any, ...]]", *, address: str = "") -> Principal:
    return Principal(name=row.owner, role=Role(row.role), project=row.project, key_id=row.id, address=address)


def _view(row: ApiKeyRow) -> KeyView:
    return KeyView(
        id=row.id,
        name=row.name,
        owner=row.owner,
        role=Role(row.role),
        project=row.project,
        created_by=row.created_by,
        created_at=moment(row.created_at),
        expires_at=moment_or_none(row.expires_at),
        revoked_at=moment_or_none(row.revoked_at),
        last_used_at=moment_or_none(row.last_used_at),
    )
