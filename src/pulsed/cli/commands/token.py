"""``pulsed token``: who may call a server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import click

from pulsed.cli.exits import Code, CommandError, say
from pulsed.cli.groups import Group
from pulsed.cli.options.database import ENVIRONMENT, Database, database_options
from pulsed.cli.view.output import Table, console, for_people, joined, json_option, print_json
from pulsed.cli.view.times import iso
from pulsed.client.operator import operator
from pulsed.handler.options import checked_name
from pulsed.rpc.open import is_remote
from pulsed.store import tokens
from pulsed.store.blocking import run_blocking
from pulsed.store.sql_store.store import SqlStore
from pulsed.store.tokens import Token

EXAMPLES = """\b
examples:
  pulsed token new shop-worker --role work --queue default --queue mail
  pulsed token new web --role produce --topic send_email
  pulsed token new ops.example.org --role admin --certificate
  pulsed token revoke shop-worker

\b
roles:
  read      read jobs, workers and schedules, and change nothing
  operate   the same, and retry, cancel and signal jobs, pause and run schedules,
            drain and stop workers
  produce   enqueue, read and cancel jobs
  work      run jobs
  admin     everything, schedules included"""

ROLES = ("read", "operate", "produce", "work", "admin")


@click.group(cls=Group, epilog=EXAMPLES + ENVIRONMENT)
def token() -> None:
    """Make, list and revoke the tokens of a server's callers."""


@token.command("new")
@click.argument("name")
@click.option(
    "--role",
    "roles",
    type=click.Choice(ROLES),
    multiple=True,
    required=True,
    help="What it allows.",
)
@click.option("--topic", "topics", multiple=True, metavar="TOPIC", help="Only this; repeatable.")
@click.option("--queue", "queues", multiple=True, metavar="QUEUE", help="Only this; repeatable.")
@click.option(
    "--certificate", is_flag=True, help="NAME is the common name of a client certificate."
)
@database_options
def new(
    database: Database,
    name: str,
    roles: tuple[str, ...],
    topics: tuple[str, ...],
    queues: tuple[str, ...],
    certificate: bool,
) -> None:
    """Make a token and print it, this once; only its digest is kept."""
    secret = None if certificate else tokens.new_secret()
    made = Token(
        checked_name("name of the token", name),
        None if secret is None else tokens.digest_of(secret),
        tuple(dict.fromkeys(roles)),
        tuple(checked_name("topic", topic) for topic in topics) or None,
        tuple(checked_name("queue", queue) for queue in queues) or None,
    )
    with _tokens_of(database) as store:
        if not run_blocking(tokens.add(store, made, by=operator())):
            raise CommandError(f"there is a token {name!r} already; revoke it, or take another.")
    if secret is None:
        say(f"the certificate {name!r} may now {', '.join(made.roles)}")
    else:
        say("keep it well: it is shown only now")
        print(secret)


@token.command("list", short_help="Show whom the server knows, and what they may do.")
@json_option
@database_options
def list_tokens(database: Database, as_json: bool | None) -> None:
    """List the callers that the server knows and what they may do, without their secrets."""
    with _tokens_of(database) as store:
        found = run_blocking(tokens.read(store))
    if not for_people(as_json=as_json):
        for each in found:
            print_json(_as_json(each))
    elif found:
        flexible = {"TOPICS": 10, "QUEUES": 10, "NAME": 16, "ROLES": 20}
        table = Table("NAME", "KIND", "ROLES", "TOPICS", "QUEUES", flexible=flexible)
        for each in found:
            table.add(
                each.name,
                _kind(each),
                joined(each.roles),
                "all" if each.topics is None else joined(each.topics),
                "all" if each.queues is None else joined(each.queues),
            )
        table.show(console())
    else:
        say("no tokens; make one with `pulsed token new NAME --role work`")


@token.command("revoke")
@click.argument("name")
@database_options
def revoke(database: Database, name: str) -> None:
    """Revoke a token; servers refuse it from then on."""
    with _tokens_of(database) as store:
        if not run_blocking(tokens.remove(store, name, by=operator())):
            raise CommandError(f"there is no token {name!r}.", Code.NOT_FOUND)
    say(f"revoked {name!r}; running servers know within seconds")


@contextmanager
def _tokens_of(database: Database) -> Iterator[SqlStore]:
    if is_remote(database.resolved()[0]):
        raise CommandError(
            "tokens are kept in the server's database; give that one's URL.", Code.USAGE
        )
    with database.store(create=True) as store:
        assert isinstance(store, SqlStore)
        yield store


def _kind(each: Token) -> str:
    return "certificate" if each.digest is None else "token"


def _as_json(each: Token) -> dict[str, object]:
    return {
        "name": each.name,
        "kind": _kind(each),
        "roles": each.roles,
        "topics": each.topics,
        "queues": each.queues,
        "created_at": None if each.created_at is None else iso(each.created_at),
    }
