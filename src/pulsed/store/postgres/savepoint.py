"""A savepoint: a part of a transaction that can be taken back, and its locks with it."""

from __future__ import annotations

from pulsed.store.sql.statement import Sql, Statement

SET_SAVEPOINT = Statement(Sql("SAVEPOINT pulsed_batch", ()), {})
RETURN_TO_SAVEPOINT = Statement(Sql("ROLLBACK TO SAVEPOINT pulsed_batch", ()), {})
RELEASE_SAVEPOINT = Statement(Sql("RELEASE SAVEPOINT pulsed_batch", ()), {})
