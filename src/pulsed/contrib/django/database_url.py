"""The URL of a database of ``settings.DATABASES``, with the same meaning for pulsed's drivers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from django.core.exceptions import ImproperlyConfigured

SQLITE = "sqlite"
POSTGRES = "postgresql"

_OF_DJANGO = {
    "assume_role",
    "client_encoding",
    "context",
    "cursor_factory",
    "isolation_level",
    "pool",
    "prepare_threshold",
    "server_side_binding",
}
"""OPTIONS that are for Django or psycopg, and that libpq does not know."""


def engine_of(alias: str, vendor: str) -> str:
    """Return which engine of pulsed serves a database of Django, or raise."""
    if vendor not in (SQLITE, POSTGRES):
        raise ImproperlyConfigured(
            f"pulsed keeps its jobs in SQLite or PostgreSQL, and the database {alias!r} is "
            f"{vendor}. Name another one: PULSED = {{'database': …}}, or {{'url': …}}."
        )
    return vendor


def url_of(vendor: str, settings: Mapping[str, Any]) -> str:
    """Return the URL of a database from its settings; one in memory is ``sqlite://``."""
    return _sqlite(settings) if vendor == SQLITE else _postgres(settings)


def is_in_memory(settings: Mapping[str, Any]) -> bool:
    """Whether the settings of an SQLite database name one in memory, as tests have it."""
    name = str(settings["NAME"])
    return name == ":memory:" or "mode=memory" in name


def _sqlite(settings: Mapping[str, Any]) -> str:
    if is_in_memory(settings):
        return "sqlite://"
    name = str(settings["NAME"])
    if name.startswith("file:"):
        name = name.removeprefix("file:").partition("?")[0]
    return f"sqlite:///{quote(str(Path(name).absolute()))}"


def _postgres(settings: Mapping[str, Any]) -> str:
    given = {
        "dbname": settings["NAME"],
        "user": settings.get("USER"),
        "password": settings.get("PASSWORD"),
        "host": settings.get("HOST"),
        "port": settings.get("PORT"),
    }
    options = settings.get("OPTIONS", {})
    keywords = {name: value for name, value in options.items() if name not in _OF_DJANGO}
    keywords |= {name: value for name, value in given.items() if value}
    return f"postgresql://?{urlencode(keywords, quote_via=quote)}"
