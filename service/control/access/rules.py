"""Access rules: which roles may do what. Pure: the API enforces them.

A key acts in one project. It sees that project's jobs; operators and admins see all jobs.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from service.job.priority import Priority
from service.wire.access import DEFAULT_PROJECT, Role


class Action(StrEnum):
    """A kind of request."""

    READ = "read"
    CREATE = "create a job"
    CHANGE = "change this job"
    DELETE = "delete this job"
    READ_KEY = "see this key"
    CHANGE_KEY = "change this key"
    CREATE_KEY = "create keys"
    CREATE_OWN_KEY = "create keys of their own"
    READ_AUDIT = "read the audit log"
    READ_METRICS = "read the service's metrics"
    UPLOAD_CODE = "upload code"
    DELETE_CODE = "delete this code"
    READ_QUOTAS = "see quotas"
    SET_QUOTAS = "set quotas"


class Owned(NamedTuple):
    """The owner of a job, key or package of code; `role` is a key's."""

    owner: str
    project: str
    role: Role = Role.VIEWER


@dataclass(frozen=True, kw_only=True)
class Principal:
    """A caller: a key's owner, a signed-in visitor of the page, or the subject of an OIDC token."""

    name: str
    role: Role
    project: str
    key_id: str | None = None
    address: str = ""
    #: When the session, or the rotated secret, by which they came ends; None: they came by the key itself, or a token.
    ends_at: float | None = None


#: The caller of the store without HTTP, who has access to the state dir.
LOCAL = Principal(name="first", role=Role.ADMIN, project=DEFAULT_PROJECT)


class _Least(NamedTuple):
    """The least role for one's own objects, for the rest of the project, and for other projects."""

    own: Role
    project: Role
    elsewhere: Role


RULES = {
    Action.READ: _Least(Role.VIEWER, Role.VIEWER, Role.OPERATOR),
    Action.CREATE: _Least(Role.SUBMITTER, Role.SUBMITTER, Role.OPERATOR),
    Action.CHANGE: _Least(Role.SUBMITTER, Role.OPERATOR, Role.OPERATOR),
    Action.DELETE: _Least(Role.SUBMITTER, Role.OPERATOR, Role.OPERATOR),
    Action.READ_KEY: _Least(Role.VIEWER, Role.ADMIN, Role.ADMIN),
    Action.CHANGE_KEY: _Least(Role.VIEWER, Role.ADMIN, Role.ADMIN),
    Action.CREATE_KEY: _Least(Role.ADMIN, Role.ADMIN, Role.ADMIN),
    Action.CREATE_OWN_KEY: _Least(Role.VIEWER, Role.ADMIN, Role.ADMIN),
    Action.READ_AUDIT: _Least(Role.ADMIN, Role.ADMIN, Role.ADMIN),
    Action.READ_METRICS: _Least(Role.OPERATOR, Role.OPERATOR, Role.OPERATOR),
    Action.UPLOAD_CODE: _Least(Role.SUBMITTER, Role.SUBMITTER, Role.OPERATOR),
    Action.DELETE_CODE: _Least(Role.SUBMITTER, Role.OPERATOR, Role.OPERATOR),
    Action.READ_QUOTAS: _Least(Role.OPERATOR, Role.OPERATOR, Role.OPERATOR),
    Action.SET_QUOTAS: _Least(Role.OPERATOR, Role.OPERATOR, Role.OPERATOR),
}
#: The least role that may give a job this priority, if it may submit or change the job at all.
PRIORITIES = {
    Priority.LOW: Role.VIEWER,
    Priority.NORMAL: Role.VIEWER,
    Priority.HIGH: Role.OPERATOR,
    Priority.URGENT: Role.ADMIN,
}


def may(caller: Principal, action: Action, what: Owned | None = None) -> bool:
    """Return whether `caller` may do `action` to `what`; None: to a new object, or to a list."""
    return caller.role.rank >= _least(caller, action, what).rank


def may_do(caller: Principal) -> tuple[str, ...]:
    """Return every action that `caller` may do to their own objects."""
    allowed = [action for action in Action if may(caller, action)]
    if caller.key_id is None and Action.CREATE_KEY not in allowed:  # a key would outlast the issuer's token
        allowed.remove(Action.CREATE_OWN_KEY)
    return tuple(action.value for action in allowed)


def _least(caller: Principal, action: Action, what: Owned | None) -> Role:
    least = RULES[action]
    if what is None:
        return least.own
    if what.project != caller.project:
        return least.elsewhere
    # A key must not create a stronger one, even for its owner: whoever found the key would gain permissions.
    is_own = what.owner == caller.name and what.role.rank <= caller.role.rank
    return least.own if is_own else least.project


def may_use(caller: Principal, priority: Priority) -> bool:
    """Return whether `caller` may give a job this priority."""
    return caller.role.rank >= PRIORITIES[priority].rank


def visible_project(caller: Principal) -> str | None:
    """Return the project whose jobs `caller` may see; None: all projects."""
    return None if caller.role.rank >= RULES[Action.READ].elsewhere.rank else caller.project
