"""The facts about a PostgreSQL server that ``doctor`` checks."""

from __future__ import annotations

from pulsed.store.sql.dialect import Dialect
from pulsed.store.sql.statement import Statement
from pulsed.store.verbs.script import Script, Verb, VerbKind

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


def check(d: Dialect) -> Verb[dict[str, str]]:
    """Read the server's version, settings, and the session longest idle in a transaction."""

    def script() -> Script[dict[str, str]]:
        server = (yield Statement(d.sql(_SERVER), {}))[0]
        idle = yield Statement(d.sql(_IDLE), {})
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
        }

    return Verb("check", VerbKind.READ, script)


def _describe(pid: int, seconds: int, application: str, role: str) -> str:
    return f"pid {pid}, {application} ({role}), for {seconds} s"
