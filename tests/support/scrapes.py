"""Plain HTTP requests to a metrics endpoint, and what a scrape has."""

import asyncio
from typing import NamedTuple

from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from pulsed.listen_address import ListenAddress

OPENMETRICS = "application/openmetrics-text; version=1.0.0"


class Reply(NamedTuple):
    status: int
    headers: dict[str, str]
    text: str


async def request(address: ListenAddress, text: str) -> Reply:
    """Send a request as it is, and read the answer to its end."""
    reader, writer = await asyncio.open_connection(address.host, address.port)
    try:
        writer.write(text.encode("latin-1"))
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    finally:
        writer.close()
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    return Reply(int(first.split(" ")[1]), headers, body.decode())


async def get(address: ListenAddress, path: str, accept: str = "*/*") -> Reply:
    """Get a path."""
    return await request(address, f"GET {path} HTTP/1.1\r\nHost: x\r\nAccept: {accept}\r\n\r\n")


class Scrape:
    """The samples of a scrape, read by Prometheus' own parser."""

    def __init__(self, text: str, *, is_openmetrics: bool = False) -> None:
        parse = (
            openmetrics.text_string_to_metric_families
            if is_openmetrics
            else text_string_to_metric_families
        )
        self.families = {family.name: family for family in parse(text)}
        self.samples = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in self.families.values()
            for sample in family.samples
        }

    def value(self, name: str, **labels: str) -> float | None:
        """Return the value of one sample."""
        return self.samples.get((name, frozenset(labels.items())))

    def labels_of(self, name: str) -> set[frozenset[tuple[str, str]]]:
        """Return the labels of all samples of a name."""
        return {labels for found, labels in self.samples if found == name}


async def scrape(address: ListenAddress, *, is_openmetrics: bool = False) -> Scrape:
    """Scrape an endpoint."""
    reply = await get(address, "/metrics", OPENMETRICS if is_openmetrics else "*/*")
    assert reply.status == 200
    return Scrape(reply.text, is_openmetrics=is_openmetrics)
