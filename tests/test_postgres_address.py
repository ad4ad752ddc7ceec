"""PostgreSQL URLs: both drivers get what libpq would read in them, and no secret leaks."""

import asyncpg.connect_utils
import pytest

from pulsed.errors import ConfigError, InvalidURL
from pulsed.store.postgres.address import PostgresAddress, PostgresOptions
from pulsed.store.postgres.store import PostgresStore

NAMED = {"application_name": "pulsed/test"}


def asyncpg_reads(url):
    """What asyncpg makes of the arguments we give it: its addresses and its parameters."""
    arguments = PostgresAddress.parse(url).for_asyncpg(NAMED, 10)
    timeout = arguments.pop("timeout")
    more = "passfile ssl service servicefile direct_tls target_session_attrs krbsrvname gsslib"
    everything = dict.fromkeys(more.split())
    addresses, parameters = asyncpg.connect_utils._parse_connect_dsn_and_args(
        **everything | arguments
    )[:2]
    return addresses, parameters, timeout


@pytest.mark.parametrize("scheme", ["postgresql", "postgres"])
def test_a_plain_url_means_the_same_to_both_drivers(scheme):
    url = f"{scheme}://ada:s%40fe@db.example:6000/jobs?sslmode=disable"
    addresses, parameters, _ = asyncpg_reads(url)
    assert addresses == [("db.example", 6000)]
    assert (parameters.user, parameters.password, parameters.database) == ("ada", "s@fe", "jobs")
    psycopg_reads = PostgresAddress.parse(url).for_psycopg(NAMED, 10)
    assert psycopg_reads["password"] == "s@fe"
    assert psycopg_reads["port"] == "6000"


@pytest.mark.parametrize(
    "url", ["postgresql:///jobs?host=/run/pg&user=ada", "postgresql://ada@%2Frun%2Fpg/jobs"]
)
def test_a_unix_socket_is_a_directory(url):
    addresses, parameters, _ = asyncpg_reads(url)
    assert addresses == ["/run/pg/.s.PGSQL.5432"]
    assert parameters.database == "jobs"


def test_a_silent_server_is_noticed_by_libpq_unless_the_url_says_otherwise():
    given = PostgresAddress.parse("postgresql://h/jobs").for_psycopg(NAMED, 10)
    assert (given["tcp_user_timeout"], given["connect_timeout"]) == (30_000, 10)
    given = PostgresAddress.parse("postgresql://h/jobs?tcp_user_timeout=7").for_psycopg(NAMED, 10)
    assert given["tcp_user_timeout"] == "7"


def test_nobody_connects_for_longer_than_the_caller_has():
    address = PostgresAddress.parse("postgresql://h/jobs?connect_timeout=20")
    assert address.for_psycopg(NAMED, 10)["connect_timeout"] == 20
    assert address.for_psycopg(NAMED, 10, most=5)["connect_timeout"] == 5
    assert address.for_psycopg(NAMED, 10, most=0.5)["connect_timeout"] == 2


def test_a_list_of_hosts_is_kept_in_its_order():
    url = "postgresql://ada@one:1,two:2/jobs?sslmode=disable&target_session_attrs=read-write"
    addresses, parameters, _ = asyncpg_reads(url)
    assert addresses == [("one", 1), ("two", 2)]
    assert parameters.target_session_attrs.value == "read-write"
    assert "one:1,two:2" in PostgresAddress.parse(url).where


def test_what_only_libpq_knows_is_not_sent_to_the_server_as_a_setting():
    url = (
        "postgresql://ada@h/jobs?sslmode=disable&connect_timeout=7&keepalives=1&gssencmode=disable"
    )
    _, parameters, timeout = asyncpg_reads(url)
    assert parameters.server_settings == NAMED
    assert timeout == 7


def test_settings_join_the_options_of_the_url():
    address = PostgresAddress.parse("postgresql://ada@h/jobs?options=-c%20work_mem%3D7MB")
    settings = NAMED | {"default_transaction_isolation": "read committed"}
    options = address.for_psycopg(settings, 10)["options"]
    assert options == r"-c work_mem=7MB -c default_transaction_isolation=read\ committed"
    assert address.for_asyncpg(NAMED, 10)["server_settings"]["options"] == "-c work_mem=7MB"


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ada:hun/ter2@h/jobs",
        "postgresql://ada:55/hunter2@h/jobs",
        "postgresql://ada:hun@ter2@h/jobs",
        "postgresql://ada:hunter2@h:port/jobs",
        "postgresql://ada:hunter2%zz@h/jobs",
        "postgresql://ada:hunter2@h/jobs?command_timeout=5",
        "postgresql+asyncpg://ada:hunter2@h/jobs",
        "mysql://ada:hunter2@h/jobs",
        "hunter2",
    ],
)
def test_a_url_that_cannot_be_read_is_refused_without_repeating_the_password(url):
    with pytest.raises(InvalidURL) as refused:
        PostgresStore(url)
    assert "hun" not in str(refused.value)
    assert "ter2" not in str(refused.value)
    assert refused.value.__cause__ is None


def test_the_name_of_a_database_has_no_credentials_in_it():
    address = PostgresAddress.parse("postgresql://ada:hunter2@h:1/jobs?sslpassword=hunter2")
    assert address.where == "PostgreSQL database 'jobs' at h:1"
    assert "hunter2" not in repr(address)


@pytest.mark.parametrize("schema", ['a"b', "a b", "1a", "", "x" * 60, "a.b", "a;drop"])
def test_a_schema_must_be_a_plain_identifier(schema):
    with pytest.raises(ConfigError, match="not a plain identifier"):
        PostgresOptions(schema=schema)


def test_opening_a_store_does_no_io():
    PostgresStore("postgresql://nobody@192.0.2.1:1/nothing")
