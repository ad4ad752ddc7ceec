"""A crawl that is polite: a workflow fans out over pages, and a limit protects each host.

Run it with ``.venv/bin/python examples/crawl.py``. It serves two small sites on this machine,
crawls both at once, and counts at the servers how many requests they had to answer at a time.
"""

import asyncio
import re
import sys
import tempfile
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.request import urlopen

from pulsed import Backoff, Context, Limit, Pulse

SCRATCH = tempfile.TemporaryDirectory(prefix="pulsed-crawl-", ignore_cleanup_errors=True)
AT_ONCE = 2
MOST_PAGES = 100
app = Pulse(f"sqlite:///{Path(SCRATCH.name) / 'crawl.db'}")


@app.job(
    limit=Limit("site", running=AT_ONCE, per="host"),
    max_attempts=3,
    backoff=Backoff.fixed(0.1),
    timeout=30,
)
def fetch(host: str, path: str) -> list[str]:
    """Fetch a page and return its links; a plain function, since urlopen blocks."""
    with urlopen(f"http://{host}{path}", timeout=10) as answer:
        return re.findall(r'href="([^"]+)"', answer.read().decode())


@app.job
async def crawl(ctx: Context, host: str) -> list[str]:
    """Visit every page of a host once, one distance from the first page after the other."""
    seen, frontier = {"/"}, ["/"]
    while frontier:
        pages = await ctx.fan_out([fetch.bind(host, path) for path in frontier])
        found = dict.fromkeys(link for links in pages.values for link in links)
        frontier = [link for link in found if link not in seen][: MOST_PAGES - len(seen)]
        seen.update(frontier)
        await ctx.aprogress({"pages": len(seen)})
    return sorted(seen)


class Site(ThreadingHTTPServer):
    """A site of 15 pages, of which one fails at first. It counts requests."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Page)
        self.host = f"127.0.0.1:{self.server_port}"
        self.requests: Counter[str] = Counter()
        self.now = self.most = 0
        self.lock = threading.Lock()
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Page(BaseHTTPRequestHandler):
    """Page n links to 2n+1 and 2n+2, and back to the first."""

    server: Site

    def do_GET(self) -> None:
        site, number = self.server, int(self.path.strip("/") or 0)
        with site.lock:
            site.requests[self.path] += 1
            site.now += 1
            site.most = max(site.most, site.now)
        time.sleep(0.03)  # a page takes its time
        is_broken = number == 3 and site.requests[self.path] == 1
        links = [f"/{n}" for n in (2 * number + 1, 2 * number + 2) if n < 15]
        body = "".join(f'<a href="{link}">page</a>' for link in ["/", *links]).encode()
        with site.lock:
            site.now -= 1
        self.send_response(503 if is_broken else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


async def main() -> int:
    """Crawl two sites with one worker; the exit code says whether the sites were spared."""
    sites = [Site(), Site()]
    worker = app.worker(poll=0.05, concurrency=20)
    working = asyncio.create_task(worker.run())
    jobs = [await crawl.aenqueue(site.host) for site in sites]
    for name, site, job in zip("ab", sites, jobs, strict=True):
        pages = await job.aresult(timeout=60)
        asked = sum(site.requests.values())
        print(f"site {name}: {len(pages)} pages, {asked} requests, at most {site.most} at a time")
    worker.stop()
    await working
    await app.aclose()
    return 0 if all(site.most <= AT_ONCE for site in sites) else 1


if __name__ == "__main__":
    code = asyncio.run(main())
    SCRATCH.cleanup()
    sys.exit(code)
