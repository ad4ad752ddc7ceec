"""The commands for tokens, and TLS with certificates of servers and of clients."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest

from pulsed.errors import AccessDenied, TransientStorageError
from pulsed.rpc.client.connection import RemoteOptions
from pulsed.rpc.client.store import RemoteStore
from pulsed.store import tokens
from pulsed.store.blocking import run_blocking
from pulsed.store.sqlite.store import SqliteStore
from pulsed.store.tokens import Token
from tests.support.backends import AT_ONCE_OPTIONS
from tests.support.certificates import Authority
from tests.support.commands import lines_of, run
from tests.support.jobs import a_job
from tests.support.servers import FreshAuthenticator, ServerThread
from tests.support.tokens import given


class TestCommands:
    def test_a_token_is_made_shown_and_revoked(self, live, backend):
        if isinstance(live, RemoteStore):
            pytest.skip("tokens are kept in the database")
        url = backend.app_url
        made = run("token", "new", "shop", "--role", "work", "--queue", "mail", PULSED_URL=url)
        assert made.exit_code == 0, made.output
        secret = made.stdout.strip()
        assert secret.startswith("pulsed_")
        assert len(secret) > 40
        (listed,) = lines_of(run("token", "list", "--json", PULSED_URL=url))
        assert (listed["name"], listed["roles"], listed["queues"]) == ("shop", ["work"], ["mail"])
        assert listed["topics"] is None
        assert secret not in str(listed)
        (kept,) = run_blocking(tokens.read(live))
        assert kept.is_proven_by(secret)
        again = run("token", "new", "shop", "--role", "work", PULSED_URL=url)
        assert (again.exit_code, "already" in again.stderr) == (1, True)
        assert run("token", "revoke", "shop", PULSED_URL=url).exit_code == 0
        assert run("token", "revoke", "shop", PULSED_URL=url).exit_code == 3
        assert run_blocking(tokens.read(live)) == []

    def test_a_server_keeps_no_tokens_for_its_clients(self):
        refused = run("token", "list", "--url", "pulse://127.0.0.1:1")
        assert (refused.exit_code, "database" in refused.stderr) == (2, True)


class TestTLS:
    @pytest.fixture
    def authority(self, tmp_path):
        return Authority(tmp_path)

    def serving(self, path: Path, authority: Authority, *, client_ca: bool) -> ServerThread:
        cert, key = authority.sign("server")
        credentials = grpc.ssl_server_credentials(
            [(key.read_bytes(), cert.read_bytes())],
            root_certificates=authority.ca.read_bytes() if client_ca else None,
            require_client_auth=client_ca,
        )
        store = SqliteStore(path)
        return ServerThread(
            lambda: store, authenticator=FreshAuthenticator(store), credentials=credentials
        )

    async def test_a_token_over_tls(self, tmp_path, authority):
        path = tmp_path / "jobs.db"
        secret = given(SqliteStore(path), "me", "admin")
        with self.serving(path, authority, client_ca=False) as server:
            options = RemoteOptions(**AT_ONCE_OPTIONS)
            place = f"me:{secret}@{server.host}"
            store = RemoteStore(f"pulses://{place}?ca={authority.ca}", options)
            assert (await store.submit([a_job()])).new == 1
            strangers = RemoteStore(f"pulses://{place}", options)  # the system's authorities
            with pytest.raises(TransientStorageError):
                await strangers.now()
            await store.aclose()
            await strangers.aclose()

    async def test_a_client_certificate_is_somebody(self, tmp_path, authority):
        path = tmp_path / "jobs.db"
        known = Token("ops", None, ("admin",), None, None)
        assert run_blocking(tokens.add(SqliteStore(path), known))
        with self.serving(path, authority, client_ca=True) as server:
            options = RemoteOptions(**AT_ONCE_OPTIONS)

            def client(name: str) -> RemoteStore:
                cert, key = authority.sign(name)
                files = f"ca={authority.ca}&cert={cert}&key={key}"
                return RemoteStore(f"pulses://{server.host}?{files}", options)

            ops, stranger = client("ops"), client("stranger")
            assert (await ops.submit([a_job()])).new == 1
            with pytest.raises(AccessDenied, match="certificate's name is not known"):
                await stranger.submit([a_job()])
            nobody = RemoteStore(f"pulses://{server.host}?ca={authority.ca}", options)
            with pytest.raises(TransientStorageError):
                await nobody.now()
            for store in (ops, stranger, nobody):
                await store.aclose()
