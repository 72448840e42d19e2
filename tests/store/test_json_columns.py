"""A JSON column returns its content to the bit, on both databases."""

from typing import Any

from hypothesis import HealthCheck, given, settings as trying, strategies as st
from sqlalchemy import JSON, Column, MetaData, Table, insert, select

from service.control.database.engine import connect
from service.settings import Settings

TEXT = st.text(st.characters(codec="utf-8"), max_size=9)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)
TABLE = Table("held", MetaData(), Column("content", JSON))


def test_json_comes_back_as_it_was(settings: Settings) -> None:
    engine = connect(settings.resolved_database_url)

    @trying(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
    @given(VALUES)
    def put_and_get(value: Any) -> None:
        with engine.begin() as connection:
            TABLE.create(connection)
            connection.execute(insert(TABLE), {"content": {"of": value}})
            (found,) = connection.scalars(select(TABLE.c.content))
            TABLE.drop(connection)
        assert repr(found) == repr({"of": value})

    put_and_get()
    engine.dispose()
