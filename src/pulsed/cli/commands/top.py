"""``pulsed top``: the state of a database, live on a terminal."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import NamedTuple

import click

from pulsed.cli.options.database import ENVIRONMENT, Database, database_options
from pulsed.cli.options.durations import time_option
from pulsed.cli.view.live_screen import LiveScreen
from pulsed.cli.view.output import console, for_people, json_option, print_json
from pulsed.cli.view.overview_report import SORTS, Caption, FrameSize, frame, overview_as_json
from pulsed.engine.overview import Overview, OverviewReader
from pulsed.engine.process.stop_signals import on_stop_signals
from pulsed.errors import PulsedError
from pulsed.handler.options import checked_name
from pulsed.store.open import where as where_is
from pulsed.wording import format_duration

SHORTEST_INTERVAL = 0.2
REDRAW = 1.0
"""Seconds between two frames, so that the age of the numbers is right."""
SLOW = 3.0
"""Seconds without an answer after which a frame says so."""

EXAMPLES = """\b
examples:
  pulsed top --url postgresql://localhost/shop
  pulsed top --queue mail --interval 5s
  pulsed top --json | jq '.queues[] | select(.due > 0 and .workers == 0)'

\b
keys:
  q  quit, as Ctrl-C does    s  sort the queues by another column"""


class View(NamedTuple):
    """What the options ask for."""

    where: str
    interval: float
    sort: str


@click.command(epilog=EXAMPLES + ENVIRONMENT)
@time_option("--interval", "How often to read the database.", default="2s")
@click.option("--queue", metavar="NAME", help="Of this queue only.")
@click.option(
    "--sort",
    type=click.Choice(tuple(SORTS)),
    default="oldest",
    show_default=True,
    help="What the queues are sorted by.",
)
@click.option("--once", is_flag=True, help="Print one frame and exit, as without a terminal.")
@json_option
@database_options
def top(
    database: Database,
    interval: float,
    queue: str | None,
    sort: str,
    once: bool,
    as_json: bool | None,
) -> None:
    """Show queues, workers, dead letters and the last hour, live.

    In a pipe, and with --json, it prints the current state as JSON and exits.
    """
    if interval < SHORTEST_INTERVAL:
        least = format_duration(SHORTEST_INTERVAL)
        raise click.BadParameter(f"{interval:g} s is too short; {least} is the least.")
    queue = None if queue is None else checked_name("queue", queue)
    where = where_is(database.resolved()[0])
    view = View(where if queue is None else f"{where}, queue {queue}", interval, sort)
    is_live = not once and as_json is None and for_people(as_json=as_json)
    if is_live:
        asyncio.run(_watch(database, queue, view))
        return
    seen = asyncio.run(_read_once(database, queue))
    if not for_people(as_json=as_json):
        print_json(overview_as_json(seen))
        return
    screen = console()
    for line in frame(seen, Caption(view.where), FrameSize(screen.width), sort):
        screen.print(line, no_wrap=True)


async def _read_once(database: Database, queue: str | None) -> Overview:
    async with database.astore() as store:
        return await OverviewReader(store, queue).read()


async def _watch(database: Database, queue: str | None, view: View) -> None:
    async with database.astore() as store:
        latest = Latest(OverviewReader(store, queue).read)
        await latest.first()  # if the database cannot be read at all, say so and exit
        with _without_logs(), LiveScreen(console()) as screen:
            await _draw_until_quit(latest, screen, view)


async def _draw_until_quit(latest: Latest, screen: LiveScreen, view: View) -> None:
    """Draw a frame at every change and every second, until q or a stop signal."""
    has_stopped = False

    def stop(*, abort: bool) -> None:  # noqa: ARG001 - there is nothing to drain
        nonlocal has_stopped
        has_stopped = True
        screen.changed.ring()

    sorts = [*SORTS]
    sort = view.sort
    with on_stop_signals(asyncio.get_running_loop(), stop):
        async with latest.kept_fresh(view.interval, screen.changed.ring):
            while not has_stopped:
                keys = f"q quit   s sort: {sort}"
                caption = latest.caption(view.where, view.interval)._replace(keys=keys)
                screen.draw(frame(latest.seen, caption, FrameSize(*screen.size), sort))
                await screen.changed.sleep(REDRAW)
                for key in screen.pressed():
                    if key in "qQ":
                        return
                    if key in "sS":
                        sort = sorts[(sorts.index(sort) + 1) % len(sorts)]


class Latest:
    """The latest overview, and why there is no newer one."""

    def __init__(
        self, read: Callable[[], Awaitable[Overview]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._read = read
        self._clock = clock
        self._seen: Overview | None = None
        self._read_at = self._asked_at = clock()
        self._error = ""

    @property
    def seen(self) -> Overview:
        """The last overview that could be read."""
        assert self._seen is not None
        return self._seen

    async def first(self) -> None:
        """Read it, or raise."""
        self._seen = await self._read()
        self._read_at = self._clock()

    async def tick(self) -> None:
        """Read it again; if that fails, keep the last one and the reason."""
        self._asked_at = self._clock()
        try:
            self._seen = await self._read()
        except Exception as error:  # noqa: BLE001 - whatever it is, the frame says it
            self._error = str(error) if isinstance(error, PulsedError) else repr(error)
        else:
            self._error = ""
            self._read_at = self._clock()

    def caption(self, where: str, interval: float) -> Caption:
        """Return what a frame says about the overview."""
        now = self._clock()
        age = now - self._read_at
        state = f"every {format_duration(interval)}"
        if self._error:
            trouble = f"{self._error} Retrying; these numbers are {format_duration(age)} old."
        elif age > interval + SLOW and self._asked_at > self._read_at:
            trouble = f"The database has not answered for {format_duration(now - self._asked_at)}."
        else:
            return Caption(where, state)
        return Caption(where, state, trouble)

    @contextlib.asynccontextmanager
    async def kept_fresh(
        self, interval: float, on_change: Callable[[], None]
    ) -> AsyncIterator[None]:
        """Read it at every interval while the block runs."""

        async def keep_reading() -> None:
            while True:
                await asyncio.sleep(interval)
                await self.tick()
                on_change()

        reading = asyncio.create_task(keep_reading())
        try:
            yield
        finally:
            reading.cancel()


@contextlib.contextmanager
def _without_logs() -> Iterator[None]:
    """Let log lines not be written over the frames; frames say what is wrong."""
    handler = logging.NullHandler()
    logging.getLogger().addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)
