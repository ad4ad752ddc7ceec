"""Django in this process, with a database of each kind: SQLite's is a file."""

import os
import uuid
from collections.abc import Iterator
from urllib.parse import urlsplit

import django
import psycopg
import pytest
from psycopg import sql

from tests.contrib_django.processes import PLACES, SETTINGS


def set_up() -> None:
    """Set Django up for this process, and leave no trace of it to the processes of other tests."""
    environment = {"DJANGO_SETTINGS_MODULE": SETTINGS, "SHOP_DATABASE": ":memory:"}
    os.environ.update(environment, SHOP_POSTGRES="postgresql:///later")
    django.setup(set_prefix=False)
    for name in (*environment, "SHOP_POSTGRES"):
        del os.environ[name]


set_up()

from django.core.management import call_command  # noqa: E402 - it needs Django to be set up
from django.db import connections  # noqa: E402

from pulsed.contrib.django import app  # noqa: E402
from tests.contrib_django.project.databases import entry  # noqa: E402
from tests.contrib_django.working import use  # noqa: E402


@pytest.fixture(scope="session")
def own_postgres(postgres_url: str) -> Iterator[str]:
    """The URL of an empty database beside the one of the other tests."""
    name = f"pulsed_django_{uuid.uuid4().hex}"
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    yield urlsplit(postgres_url)._replace(path=f"/{name}").geturl()
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@pytest.fixture(scope="session")
def databases(own_postgres: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Make the tables of both databases."""
    PLACES["default"] = str(tmp_path_factory.mktemp("django") / "shop.db")
    PLACES["postgres"] = own_postgres
    for alias, place in PLACES.items():
        connections.settings[alias].update(entry(place))
        use(alias)
        call_command("migrate", database=alias, run_syncdb=True, verbosity=0)


@pytest.fixture(params=["default", "postgres"], ids=["sqlite", "postgres"])
def alias(request: pytest.FixtureRequest, databases: None) -> Iterator[str]:
    """The database that has the jobs and the models, empty."""
    use(request.param)
    yield request.param
    call_command("flush", database=request.param, interactive=False, verbosity=0)
    app.leave()
    connections.close_all()
