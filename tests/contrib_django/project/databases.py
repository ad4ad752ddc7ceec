"""Entries of DATABASES for a URL of the test suite, or for a file."""

import os
from urllib.parse import unquote, urlsplit

PASSWORDS = {"username": "USER", "password": "PASSWORD", "hostname": "HOST", "port": "PORT"}


def postgres(url: str) -> dict[str, object]:
    """The entry of DATABASES for a URL of the test suite."""
    parts = urlsplit(url)
    given = {key: unquote(str(getattr(parts, name) or "")) for name, key in PASSWORDS.items()}
    options = dict(pair.split("=") for pair in parts.query.split("&") if pair)
    host = {"HOST": unquote(options.pop("host"))} if "host" in options else {}
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parts.path.lstrip("/"),
        **given,
        **host,
        "OPTIONS": options,
        "CONN_MAX_AGE": 60,
    }


def sqlite(path: str) -> dict[str, object]:
    """The entry of DATABASES for a file."""
    return {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": path,
        "OPTIONS": {"transaction_mode": "IMMEDIATE", "timeout": 20},
        "TEST": {"NAME": os.environ.get("SHOP_TEST_DATABASE")},
    }


def entry(place: str) -> dict[str, object]:
    """The entry of DATABASES for a URL of PostgreSQL, or for a file."""
    return postgres(place) if place.startswith("postgresql:") else sqlite(place)
