"""Requests to the dashboard as a browser sends them, without a browser or a network."""

from __future__ import annotations

import asyncio
import html
import re
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlencode, urlsplit

HOST = "127.0.0.1:8124"


@dataclass(frozen=True)
class Answer:
    """What the dashboard answered."""

    status: int
    headers: dict[str, str]
    body: str

    @property
    def text(self) -> str:
        """What a reader sees: the page without its tags, with single spaces."""
        without = re.sub(r"<(script|style).*?</\1>|<[^>]*>", " ", self.body, flags=re.DOTALL)
        return re.sub(r"\s+", " ", html.unescape(without))

    @property
    def location(self) -> str:
        """Where a redirect leads."""
        return self.headers["location"]


@dataclass
class Tab:
    """A tab that visits the dashboard; it keeps cookies."""

    app: Any
    client: str = "127.0.0.1"
    cookies: dict[str, str] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)

    async def get(self, path: str, **headers: str) -> Answer:
        """Open a page."""
        return await self.request("GET", path, b"", headers)

    async def post(self, path: str, /, **fields: str | list[str]) -> Answer:
        """Send a form of a page."""
        if "pulsed_csrf" not in self.cookies:
            await self.get("/")
        given = {"csrf": self.cookies["pulsed_csrf"]} | fields
        form = {"content-type": "application/x-www-form-urlencoded", "origin": f"http://{HOST}"}
        return await self.request("POST", path, urlencode(given, doseq=True).encode(), form)

    async def follow(self, answer: Answer) -> Answer:
        """Open the page that a redirect leads to."""
        assert answer.status == 303, answer.text
        return await self.get(answer.location)

    async def request(
        self,
        method: str,
        path: str,
        body: bytes,
        headers: dict[str, str],
        leave_after: int | None = None,
    ) -> Answer:
        """Send a request and read its answer, or leave after so many messages of it."""
        parts = urlsplit(path)
        given = {"host": HOST} | self.headers | headers
        if self.cookies:
            given["cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "scheme": "http",
            "method": method, "path": unquote(parts.path), "raw_path": parts.path.encode(),
            "query_string": parts.query.encode(), "root_path": "", "client": (self.client, 4711),
            "server": ("127.0.0.1", 8124),
            "headers": [(name.encode(), value.encode()) for name, value in given.items()],
        }  # fmt: skip
        sent: list[dict[str, Any]] = []
        left = asyncio.Event()
        asked = False

        async def receive() -> dict[str, Any]:
            nonlocal asked
            if asked and leave_after is not None:
                await left.wait()
                return {"type": "http.disconnect"}
            asked = True
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)
            if len(sent) == leave_after:
                left.set()

        await self.app(scope, receive, send)
        return self._answer(sent)

    def _answer(self, sent: list[dict[str, Any]]) -> Answer:
        start = sent[0]
        headers = {}
        for name, value in start["headers"]:
            if name == b"set-cookie":
                self._keep(value.decode())
            headers[name.decode()] = value.decode()
        body = b"".join(message.get("body", b"") for message in sent[1:])
        return Answer(start["status"], headers, body.decode())

    def _keep(self, cookie: str) -> None:
        name, _, value = cookie.partition(";")[0].partition("=")
        if "max-age=0" in cookie.lower():
            self.cookies.pop(name, None)
        else:
            self.cookies[name] = value
