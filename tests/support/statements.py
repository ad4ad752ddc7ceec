"""The statements of an engine, found by their names."""

from pulsed.store.postgres.dialect import PostgresDialect
from pulsed.store.postgres.engine import PostgresEngine
from pulsed.store.sql.prepared import StatementGroup, prepared
from pulsed.store.sql.statement import Sql
from pulsed.store.verbs.engine import Engine


def postgres_engine(schema: str | None = None) -> PostgresEngine:
    """Return PostgreSQL's statements, without a server."""
    return PostgresEngine(PostgresDialect(schema))


def groups(engine: Engine) -> list[StatementGroup]:
    """Return the groups of an engine's statements."""
    return [group for group in vars(engine).values() if isinstance(group, StatementGroup)]


def names_of(group: StatementGroup) -> set[str]:
    """Return the names of a group's statements."""
    kind = type(group)
    return {name for name in dir(kind) if isinstance(getattr(kind, name), prepared)}


def owner_of(engine: Engine, name: str) -> StatementGroup:
    """Return the group that has a statement of jobs; schedules have names of their own."""
    [owner] = [
        group
        for group in groups(engine)
        if group is not engine.schedules and name in names_of(group)
    ]
    return owner


def sql_of(engine: Engine, name: str) -> Sql:
    """Return a statement of jobs."""
    sql: Sql = getattr(owner_of(engine, name), name)
    return sql
