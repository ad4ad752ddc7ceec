"""Encrypts what jobs carry, with AES-GCM and keys that can be rotated.

Needs the package ``cryptography``. Run it: ``python examples/encrypted.py``.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from base64 import urlsafe_b64decode, urlsafe_b64encode
from pathlib import Path
from tempfile import TemporaryDirectory

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from pulsed import CodecContext, Pulse

NONCE = 12
"""Bytes of a nonce, which is new for every text."""


class AesGcm:
    """A codec: each text is encrypted with the first key and names it, so that any can decrypt.

    What the text is and which job it belongs to is authenticated: moved to another place in the
    database, it cannot be decrypted.
    """

    def __init__(self, keys: dict[str, bytes], *, accepts_plain: bool = False) -> None:
        self._ciphers = {name: AESGCM(key) for name, key in keys.items()}
        self._newest = next(iter(keys))
        self.accepts_plain = accepts_plain
        """Whether data that was stored before there was a codec is taken as it is."""

    def encode(self, text: str, context: CodecContext) -> str:
        """Return the name of the key, the nonce and the encrypted text."""
        nonce = os.urandom(NONCE)
        sealed = self._ciphers[self._newest].encrypt(nonce, text.encode(), bytes(context))
        return f"{self._newest}.{urlsafe_b64encode(nonce + sealed).decode()}"

    def decode(self, text: str, context: CodecContext) -> str:
        """Return the text; raises if its key is unknown, or if it was changed or moved."""
        name, _, data = text.partition(".")
        raw = urlsafe_b64decode(data)
        return self._ciphers[name].decrypt(raw[:NONCE], raw[NONCE:], bytes(context)).decode()


def make_app(url: str, keys: dict[str, bytes]) -> Pulse:
    """Return an app whose data only holders of the keys can read."""
    app = Pulse(url, codec=AesGcm(keys))

    @app.job
    async def charge(card: str, cents: int) -> str:
        return f"charged {cents} cents to {card}"

    return app


async def main() -> None:
    """Run a job whose arguments the database does not know, with an old and with a new key."""
    old, new = AESGCM.generate_key(256), AESGCM.generate_key(256)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "jobs.db"
        async with make_app(f"sqlite:///{path}", {"2025": old}) as producer:
            job = await producer.aenqueue("charge", {"card": "4111 1111 1111 1111", "cents": 995})
        with sqlite3.connect(path) as connection:
            [(stored,)] = connection.execute("SELECT payload FROM pulse_jobs").fetchall()
        print("the database has", stored[:45], "…")
        async with make_app(f"sqlite:///{path}", {"2026": new, "2025": old}) as app:
            worker = app.worker(poll=0.05)
            running = asyncio.create_task(worker.run())
            print("the worker says", await (await app.jobs.aget(job.id)).aresult(10))
            worker.stop()
            await running


if __name__ == "__main__":
    asyncio.run(main())
