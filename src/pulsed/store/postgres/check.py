"""The facts about a PostgreSQL server that ``doctor`` checks."""

from __future__ import annotations

from pulsed.store.sql.dialect import Dialect
from pulsed.store.sql.statement import Statement
from pulsed.store.verbs.script import Script, VerbKind, verb
from pulsed.wording import format_bytes, format_duration

_SERVER = """SELECT current_setting('server_version'), current_database(), current_user,
    coalesce(current_schema(), ''), pg_is_in_recovery()::text,
    current_setting('synchronous_commit'), current_setting('max_connections'),
    (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend')::text,
    current_setting('autovacuum'), current_setting('transaction_isolation')"""

# An open transaction keeps vacuum from removing dead rows of its database.
_IDLE = """SELECT pid, extract(epoch FROM clock_timestamp() - xact_start)::bigint,
        coalesce(nullif(application_name, ''), 'unnamed'), coalesce(usename::text, '?')
    FROM pg_stat_activity
    WHERE state LIKE 'idle in transaction%' AND xact_start IS NOT NULL
        AND datname = current_database() AND pid <> pg_backend_pid()
    ORDER BY xact_start LIMIT 1"""

# Estimates from the catalog and the statistics collector: no table is read.
_TABLES = """SELECT c.relname::text, pg_table_size(c.oid)::bigint, pg_indexes_size(c.oid)::bigint,
        greatest(c.reltuples, 0)::bigint, coalesce(s.n_dead_tup, 0)::bigint,
        extract(epoch FROM clock_timestamp() - greatest(s.last_vacuum, s.last_autovacuum))::bigint
    FROM pg_class AS c LEFT JOIN pg_stat_user_tables AS s ON s.relid = c.oid
    WHERE c.relkind = 'r' AND starts_with(c.relname::text, 'pulse_')
      AND c.relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = to_regclass('{jobs}'))
    ORDER BY pg_total_relation_size(c.oid) DESC"""


@verb(VerbKind.READ)
def check(d: Dialect) -> Script[dict[str, str]]:
    """Read the server's version, settings, and the session longest idle in a transaction."""
    server = (yield Statement(d.sql(_SERVER), {}))[0]
    idle = yield Statement(d.sql(_IDLE), {})
    tables = yield Statement(d.sql(_TABLES.format(jobs=d.jobs.replace("'", "''"))), {})
    version, database, role, schema, standby, commit, most, used, autovacuum, isolation = server
    return {
        "engine": f"PostgreSQL {version}",
        "database": database,
        "role": role,
        "search_path_schema": schema,
        "standby": "yes" if standby == "true" else "no",
        "synchronous_commit": commit,
        "isolation": isolation,
        "max_connections": most,
        "connections": used,
        "autovacuum": autovacuum,
        "idle_in_transaction": _describe(*idle[0]) if idle else "none",
        "size": format_bytes(sum(table + indexes for _, table, indexes, *_ in tables)),
        **{f"table:{name}": _describe_table(*numbers) for name, *numbers in tables},
    }


def _describe(pid: int, seconds: int, application: str, role: str) -> str:
    return f"pid {pid}, {application} ({role}), for {seconds} s"


def _describe_table(size: int, indexes: int, rows: int, dead: int, vacuumed: int | None) -> str:
    when = "never vacuumed" if vacuumed is None else f"vacuumed {format_duration(vacuumed)} ago"
    return (
        f"{format_bytes(size)}, indexes {format_bytes(indexes)}, about {rows:,} rows, "
        f"{dead:,} dead, {when}"
    )
