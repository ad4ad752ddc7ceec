"""The overview of a database on a terminal of any size, or as JSON data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from rich.text import Text

from pulsed.cli.plain import in_line
from pulsed.cli.view.output import worker_as_json
from pulsed.cli.view.queue_table import (
    control_as_json,
    governed_by,
    number,
    queue_as_json,
    queue_table,
)
from pulsed.cli.view.sparkline import sparkline
from pulsed.cli.view.worker_table import worker_table
from pulsed.engine.governed import Warn
from pulsed.engine.lanes import LaneState
from pulsed.engine.overview import Overview
from pulsed.engine.why import is_live
from pulsed.model.control import ControlScope
from pulsed.model.rollup import Stats
from pulsed.wording import counted, format_percent, format_rate, maybe_duration

BLANK = Text()
GAP = "   "
MARGIN = "last hour  "

SORTS: dict[str, Callable[[LaneState], Any]] = {
    "oldest": lambda queue: (-(queue.oldest or 0), -queue.per_minute_out, queue.name),
    "due": lambda queue: (-queue.due, queue.name),
    "rate": lambda queue: (-queue.per_minute_out, queue.name),
    "failed": lambda queue: (-(queue.failure_rate or 0), queue.name),
    "name": lambda queue: queue.name,
}
"""The orders of queues."""


class Caption(NamedTuple):
    """What a frame says about itself."""

    where: str
    """The database, and perhaps the queue."""
    state: str = ""
    """How old the numbers are."""
    trouble: str = ""
    """Why there are no newer ones."""
    keys: str = ""


class FrameSize(NamedTuple):
    """The size of a terminal."""

    width: int
    height: int | None = None
    """None: as many lines as it takes."""


def frame(seen: Overview, caption: Caption, size: FrameSize, sort: str = "oldest") -> list[Text]:
    """Return the lines of an overview, no longer and no more than the terminal has room for.

    Dead letters come first. If there is not enough room, queues and workers are cut with their
    number, warnings after a third of it, and what is paused or full after a quarter of the rest.
    """
    width, height = size
    lines = [_title(caption, width)]
    if caption.trouble:
        lines += _hanging(Text(in_line(f"✕ {caption.trouble}"), style="bold red"), width, 2)
    lines += [BLANK, *_flow(_tiles(seen), width), BLANK, *_chart(seen, width)]
    foot = [Text(caption.keys, style="dim")] if caption.keys else []
    room = None if height is None else max(0, height - len(lines) - len(foot))
    warned = _cut([*_warnings(seen.warnings, width)], None if room is None else room // 3)
    lines += [BLANK, *warned] if warned else []
    room = None if height is None else max(0, height - len(lines) - len(foot))
    held = _cut([*_controls(seen, width)], None if room is None else room // 4)
    lines += [BLANK, *held] if held else []
    room = None if height is None else max(0, height - len(lines) - len(foot))
    lines += _tables(seen, sort, width, room)
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    if height is None:
        return lines
    lines = lines[: max(0, height - len(foot))]
    return [*lines, *[BLANK] * (height - len(foot) - len(lines)), *foot]


def _title(caption: Caption, width: int) -> Text:
    line = Text.assemble(("pulsed top", "bold"), "  ", (in_line(caption.where), "dim"))
    if not caption.state:
        return line
    line.truncate(width - len(caption.state) - len(GAP), overflow="ellipsis", pad=True)
    return line.append(GAP).append(caption.state, style="dim")


def _tiles(seen: Overview) -> Iterator[Text]:
    """Yield the numbers of the overview, what is wrong first."""
    glance, oldest = seen.glance, seen.oldest
    dead = "" if seen.dead is None else number(seen.dead.number, at_least=seen.dead.at_least)
    new = f"{glance.new_dead:,} new in 24 h" if glance.new_dead else "none new in 24 h"
    is_new = bool(glance.new_dead and (seen.dead is None or seen.dead.number))
    mark = Text("▲ " if is_new else "")
    yield _styled(mark + _tile("dead letters", dead, new), "bold red" if is_new else "")
    waited = None if oldest is None else oldest.oldest
    queue = "nothing is due" if oldest is None else f"queue {oldest.name}"
    yield _tile("oldest waiting", maybe_duration(waited), queue)
    due = number(
        sum(each.due for each in seen.queues),
        at_least=any(each.due_at_least for each in seen.queues),
    )
    yield _tile("due", due)
    slots = sum(worker.slots for worker in seen.workers)
    running = number(
        sum(each.running for each in seen.queues),
        at_least=any(each.running_at_least for each in seen.queues),
    )
    yield _tile("running", running, f"of {counted(slots, 'slot')}" if slots else "no live worker")
    yield _tile(
        "per minute",
        format_rate(glance.per_minute),
        f"usually {format_rate(glance.usual_per_minute)}",
    )
    usual = format_percent(glance.usual_failure_rate)
    yield _tile("failed", format_percent(glance.failure_rate), f"usually {usual}")
    yield _tile("wait p95", maybe_duration(glance.wait_p95))
    yield _tile("run p95", maybe_duration(glance.run_p95))


def _tile(label: str, value: str, beside: str = "") -> Text:
    text = Text.assemble((label, "dim"), " ", (value, "bold")) if value else Text(label)
    if beside:
        comma = "" if beside.startswith("of ") or not value else ","
        text.append(f"{comma} {in_line(beside)}", style="dim")
    return text


def _styled(text: Text, style: str) -> Text:
    return Text(text.plain, style=style) if style else text


def _flow(tiles: Iterator[Text], width: int) -> list[Text]:
    """Return the tiles in as few lines as they need."""
    lines = [next(tiles)]
    for tile in tiles:
        if len(lines[-1]) + len(GAP) + len(tile) <= width:
            lines[-1] = lines[-1].append(GAP).append_text(tile)
        else:
            lines.append(tile)
    return lines


def _chart(seen: Overview, width: int) -> Iterator[Text]:
    """Yield the last hour as bars, and below it the failed attempts if there are any."""
    minutes = [point.stats for point in seen.hour.points]
    ended = [each.ended for each in minutes]
    most = f"{GAP}at most {format_rate(max(ended, default=0))} a minute"
    room = width - len(MARGIN) - len(most)
    yield Text.assemble((MARGIN, "dim"), (sparkline(ended, room), "green"), (most, "dim"))
    failed = [_failures(each) for each in minutes]
    if any(failed):
        margin = f"{'failed':{len(MARGIN)}}"
        total = f"{GAP}{counted(sum(failed), 'attempt')}"
        yield Text.assemble((margin, "dim"), (sparkline(failed, room), "red"), (total, "dim"))


def _failures(stats: Stats) -> int:
    return stats.failed + stats.dead_lettered


def _warnings(warnings: Sequence[Warn], width: int) -> Iterator[Text]:
    for warning in warnings:
        yield from _hanging(Text(in_line(f"! {warning.text}"), style="yellow"), width, 2)
        if warning.command:
            yield Text(f"  → {in_line(warning.command)}", style="bold")


def _hanging(line: Text, width: int, indent: int) -> list[Text]:
    """Return a text as lines of this width, all but the first indented."""
    words, lines = line.plain.split(" "), [""]
    for word in words:
        if len(lines[-1]) + 1 + len(word) > width and lines[-1].strip():
            lines.append(" " * indent + word)
        else:
            lines[-1] += f" {word}" if lines[-1] else word
    return [Text(each, style=line.style) for each in lines]


def _tables(seen: Overview, sort: str, width: int, room: int | None) -> Iterator[Text]:
    """Yield the queues and the workers; both are cut if there is no room for all of them."""
    ordered = sorted(seen.queues, key=SORTS[sort])
    queues = [*queue_table(ordered, _notes(seen)).lines(width)] if ordered else []
    known = seen.lanes.workers
    workers = [*worker_table(known, seen.lanes.now).lines(width)] if known else []
    if not queues and not workers:
        yield BLANK
        yield Text("No job is due or running, and no worker is alive. Start one:")
        yield Text("  → pulsed dev module:app", style="bold")
        return
    for_queues = for_workers = None
    if room is not None:
        gaps = bool(queues) + bool(workers)
        for_workers = min(len(workers), max(room // 3, room - gaps - len(queues)))
        for_queues = room - gaps - for_workers
    for lines, most in ((queues, for_queues), (workers, for_workers)):
        if cut := _cut(lines, most):
            yield BLANK
            yield from cut


def _notes(seen: Overview) -> dict[str, Text]:
    """Return a line for each queue that something governs."""
    controls = seen.governed.of(ControlScope.QUEUE)
    return {name: governed_by(control, seen.lanes.now) for name, control in controls.items()}


def _controls(seen: Overview, width: int) -> Iterator[Text]:
    """Yield the topics and limits that are paused, and the limits that are full."""
    for scope in (ControlScope.TOPIC, ControlScope.LIMIT):
        for name, control in seen.governed.of(scope).items():
            if control.paused:
                state = governed_by(control, seen.lanes.now)
                yield from _hanging(Text(in_line(f"{scope} {name} {state}")), width, 2)
    for limit in seen.governed.full_limits:
        waiting = number(limit.waiting, at_least=limit.at_least)
        line = f"limit {limit.name} full: {limit.in_words}, {waiting} waiting"
        yield from _hanging(Text(in_line(line), style="yellow"), width, 2)


def _cut(lines: list[Text], most: int | None) -> list[Text]:
    """Return at most so many lines; the last one says how many are left out."""
    if most is None or len(lines) <= most:
        return lines
    if most < 3:  # a head, a line and how many more
        return []
    left_out = len(lines) - most + 1
    return [*lines[: most - 1], Text(f"… {counted(left_out, 'more line')}", style="dim")]


# -- for machines ---------------------------------------------------------------------------------


def overview_as_json(seen: Overview) -> dict[str, Any]:
    """Return an overview as JSON data; durations are seconds."""
    now, oldest = seen.lanes.now, seen.oldest
    return {
        "now": now,
        "dead_letters": None if seen.dead is None else seen.dead.number,
        "dead_letters_at_least": seen.dead is not None and seen.dead.at_least,
        **seen.glance._asdict(),
        "oldest": None if oldest is None else oldest.oldest,
        "oldest_queue": None if oldest is None else oldest.name,
        "due": sum(queue.due for queue in seen.queues),
        "running": sum(queue.running for queue in seen.queues),
        "slots": sum(worker.slots for worker in seen.workers),
        "warnings": [warning._asdict() for warning in seen.warnings],
        "queues": [queue_as_json(queue) | _paused_in(seen, queue.name) for queue in seen.queues],
        "paused": [
            control_as_json(control)
            for control in seen.governed.controls.values()
            if control.paused
        ],
        "full_limits": [
            {
                "limit": each.name,
                "running": each.running,
                "most_running": each.most_running,
                "waiting": each.waiting,
                "full_keys": len(each.full),
            }
            for each in seen.governed.full_limits
        ],
        "workers": [
            worker_as_json(each) | {"live": is_live(each, now)} for each in seen.lanes.workers
        ],
        "minutes": [
            {"at": point.at, "ended": point.stats.ended, "failed": _failures(point.stats)}
            for point in seen.hour.points
        ],
    }


def _paused_in(seen: Overview, queue: str) -> dict[str, bool]:
    control = seen.governed.of(ControlScope.QUEUE).get(queue)
    return {"paused": control is not None and control.paused}
