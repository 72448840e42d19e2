"""Roles: who may do what to whose jobs and keys."""

from dataclasses import replace

import pytest

from service.control.access.rules import Action, Owned, Principal, may, may_do, visible_project
from service.wire.access import Role

#: Of each action: the roles that may do it to what is their own, their project's, and another project's.
TABLE = {
    Action.READ: ("VSOA", "VSOA", "OA"),
    Action.CREATE: ("SOA", "SOA", "OA"),
    Action.CHANGE: ("SOA", "OA", "OA"),
    Action.DELETE: ("SOA", "OA", "OA"),
    Action.UPLOAD_CODE: ("SOA", "SOA", "OA"),
    Action.DELETE_CODE: ("SOA", "OA", "OA"),
    Action.READ_KEY: ("VSOA", "A", "A"),
    Action.CHANGE_KEY: ("VSOA", "A", "A"),
    Action.CREATE_KEY: ("A", "A", "A"),
    Action.CREATE_OWN_KEY: ("VSOA", "A", "A"),
    Action.READ_AUDIT: ("A", "A", "A"),
    Action.READ_METRICS: ("OA", "OA", "OA"),
    Action.READ_QUOTAS: ("OA", "OA", "OA"),
    Action.SET_QUOTAS: ("OA", "OA", "OA"),
}
PLACES = (Owned("anna", "red"), Owned("bert", "red"), Owned("anna", "blue"))


def anna(role: Role) -> Principal:
    return Principal(name="anna", role=role, project="red")


@pytest.mark.parametrize("action", Action)
def test_a_role_may_do_what_the_table_says_and_nothing_else(action):
    allowed = [[role for role in Role if may(anna(role), action, place)] for place in PLACES]

    assert ["".join(role[0].upper() for role in roles) for roles in allowed] == list(TABLE[action])


def test_nobody_reaches_a_stronger_key_through_a_weaker_one_of_the_same_owner():
    strong = Owned("anna", "red", Role.OPERATOR)

    reach = [role for role in Role if may(anna(role), Action.CHANGE_KEY, strong)]

    assert reach == [Role.OPERATOR, Role.ADMIN]


@pytest.mark.parametrize("role", Role)
def test_only_with_a_key_or_as_an_admin_one_is_told_to_make_keys_of_ones_own(role):
    callers = (anna(role), replace(anna(role), key_id="key-1"))

    told = [Action.CREATE_OWN_KEY in may_do(caller) for caller in callers]

    assert told == [role is Role.ADMIN, True]


def test_operators_and_admins_see_every_project():
    assert [visible_project(anna(role)) for role in Role] == ["red", "red", None, None]
