"""The tokens of a server's callers."""

from __future__ import annotations

from pulsed.store.sql.dialect import Dialect
from pulsed.store.sql.prepared import StatementGroup, prepared

CALLER_COLUMNS = "name, digest, roles, topics, queues, created_at"


class TokenStatements(StatementGroup):
    """Tokens: added, read and removed."""

    @prepared()
    def add_token(self, d: Dialect) -> str:
        """Add a token, unless its name is taken."""
        return f"""INSERT INTO {d.tokens} ({CALLER_COLUMNS})
            VALUES (:name::text, :digest::text, :roles::text, :topics::text, :queues::text,
                    {d.now})
            ON CONFLICT (name) DO NOTHING RETURNING name"""

    @prepared()
    def read_digest(self, d: Dialect) -> str:
        """Read the digest that is stored under a name."""
        return f"SELECT digest FROM {d.tokens} WHERE name = :name::text"

    @prepared()
    def read_tokens(self, d: Dialect) -> str:
        """Read all tokens."""
        return f"SELECT {CALLER_COLUMNS} FROM {d.tokens} ORDER BY name"

    @prepared()
    def find_token(self, d: Dialect) -> str:
        """Read the token with a digest."""
        return f"SELECT {CALLER_COLUMNS} FROM {d.tokens} WHERE digest = :digest::text"

    @prepared()
    def remove_token(self, d: Dialect) -> str:
        """Remove a token."""
        return f"DELETE FROM {d.tokens} WHERE name = :name::text RETURNING name"
