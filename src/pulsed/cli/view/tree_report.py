"""The tree of a workflow on a terminal: a line for each step and each child, with durations."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from rich.console import Console
from rich.text import Text
from rich.tree import Tree

from pulsed.cli.plain import in_line
from pulsed.cli.view.output import COLOURS, SHORT, one_line, status_of, text_in_line
from pulsed.cli.view.times import moment
from pulsed.client.job_tree import Child, Children, Node, Step
from pulsed.client.step_wording import Tone, outcome_of
from pulsed.engine.why import waits_for
from pulsed.model.job import Status
from pulsed.wording import format_duration

GUIDES = "dim"
WIDEST = 24
"""How far names are padded, so that what follows stands in a column."""


def print_tree(to: Console, node: Node) -> None:
    """Print what is below a job, if there is anything."""
    if not node.is_workflow:
        return
    to.print()
    tree = Tree(Text("steps", style="bold"), guide_style=GUIDES)
    _add_steps(tree, node)
    to.print(tree, soft_wrap=False)


def wait_line(node: Node) -> str:
    """Return what a WAITING job waits for, since when and until when."""
    since = "" if node.waits_since is None else f", since {moment(node.waits_since, node.now)}"
    return f"{waits_for(node.job)}{since}, {_limit(node.job.due_at, node.now)}"


def _limit(until: datetime | None, now: datetime) -> str:
    return "with no deadline" if until is None else f"until {moment(until, now)}"


# -- steps ----------------------------------------------------------------------------------------


def _add_steps(tree: Tree, node: Node) -> None:
    width = min(WIDEST, max((len(str(step.checkpoint.key)) for step in node.steps), default=0))
    for step in node.steps:
        line = Text(f"{in_line(str(step.checkpoint.key)):{width}}  ")
        branch = tree.add(text_in_line(line.append_text(_came_to(step, node))))
        if step.checkpoint.error is not None and step.children is None:
            branch.add(Text(one_line(step.checkpoint.error), style="red"))
        if step.children is not None:
            _add_children(branch, step.children)
    if node.others:
        jobs = "child" if node.others == 1 else "children"
        where = f"pulsed jobs list --parent {node.job.id}"
        tree.add(Text(f"{node.others:,} {jobs} of no step here: {where}", style="dim"))


def _came_to(step: Step, node: Node) -> Text:
    """Return the outcome of a step and how long it took, or what it waits for."""
    said = outcome_of(step, node)
    text = Text().append(said.text, style=STYLES[said.tone])
    if step.checkpoint.tries > 1:
        text.append(f", {step.checkpoint.tries} tries", style="yellow")
    if step.children is not None:
        text.append(": ").append_text(_counted(step.children))
    return text


STYLES: dict[Tone, str] = {
    "good": "green",
    "bad": "red",
    "waiting": "magenta",
    "running": "cyan",
    "soft": "dim",
    "": "",
}


# -- children -------------------------------------------------------------------------------------


def _counted(children: Children) -> Text:
    """Return the numbers of children by status."""
    if not children.total:
        return Text("no children are left", style="dim")
    line = Text(f"{children.total:,} {'child' if children.total == 1 else 'children'}, ")
    parts = [
        Text(f"{number:,} {SHORT.get(status, status)}", style=COLOURS[status])
        for status, number in children.counts.items()
        if number
    ]
    return line.append_text(Text(", ").join(parts))


def _add_children(branch: Tree, children: Children) -> None:
    for child in children.shown:
        below = branch.add(_child_line(child))
        for line in _about(child.node):
            below.add(line)
        _add_steps(below, child.node)
    if left := children.total - len(children.shown):
        failed = f", {children.failed_unseen:,} of them failed" if children.failed_unseen else ""
        branch.add(Text(f"… and {left:,} more{failed}: --all shows them", style="dim"))


def _child_line(child: Child) -> Text:
    job, now = child.node.job, child.node.now
    place = "?" if child.place is None else str(child.place)
    line = Text.assemble((place, "dim"), f" {in_line(job.topic)}  ")
    line.append_text(status_of(job))
    if job.completed_at is not None:
        line.append(f" in {format_duration((job.completed_at - job.submitted_at).total_seconds())}")
    elif job.status is Status.RUNNING and job.started_at is not None:
        line.append(f" for {format_duration((now - job.started_at).total_seconds())}")
    return line.append(f"  {job.id}", style="dim")


def _about(node: Node) -> Iterator[Text]:
    if node.job.last_error is not None and node.job.status is not Status.SUCCEEDED:
        error = one_line(node.job.last_error)
        yield Text(error, style="red", no_wrap=True, overflow="ellipsis")
    if node.job.status is Status.WAITING and node.waits_since is None:
        yield Text(in_line(wait_line(node)), style="magenta")
