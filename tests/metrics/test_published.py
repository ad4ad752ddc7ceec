"""The documented metrics, the alert rules and the dashboard: all of it is exported."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from pulsed.engine.governed import Governed
from pulsed.engine.limits import LimitState
from pulsed.engine.load import Load
from pulsed.metrics.counts import ProcessCounts
from pulsed.metrics.exposition import encoded, metrics_of
from pulsed.metrics.load import Loads
from pulsed.metrics.process import ProcessState, ServerState
from pulsed.model.control import Control, ControlScope, Numbers
from pulsed.model.events import JobsClaimed, ListenerChanged, StorageRetried
from pulsed.model.job import WorkerInfo
from tests.support.jobs import ALICE
from tests.support.pages import ROOT
from tests.support.scrapes import Scrape

DOCS = ROOT / "docs"
RULES = yaml.safe_load((DOCS / "monitoring/alerts.yml").read_text("utf-8"))["groups"]
DASHBOARD = json.loads((DOCS / "monitoring/grafana.json").read_text("utf-8"))
ROW = re.compile(r"^\| `(pulsed_\w+)` \| (\w+) \| (.*?)\| (.+) \|$", re.MULTILINE)


FIVE = Numbers(running=5)
CONTROLS = [Control(scope=scope, name="work", declared=FIVE) for scope in ControlScope]
GOVERNED = Governed(
    {each.key: each for each in CONTROLS}, [LimitState(name="work", numbers=FIVE, declared=FIVE)]
)


def everything() -> Scrape:
    """A scrape that has every metric."""
    counts = ProcessCounts([("default", "work")])
    claimed = JobsClaimed(worker_id=ALICE, queue="default", jobs=1, seconds=0.1)
    retried = StorageRetried("claim", "E", "…")
    counts.add([claimed, retried, ListenerChanged(connected=True)])
    worker = WorkerInfo(id=ALICE, host="h", pid=1, queues=(), topics=(), slots=1)
    state = ProcessState("running", worker, ServerState(1, 1))
    loads = Loads(is_up=True, age=0.0, lanes={("default", "work"): Load(1, 1.0)}, governed=GOVERNED)
    text = encoded(metrics_of(counts, state, loads), {}).text.decode()
    return Scrape(text)


SEEN = everything()
LABELS: dict[str, set[str]] = {}
"""The labels of each sample's name."""
for name, found in SEEN.samples:
    LABELS.setdefault(name, set()).update(label for label, _ in found)


def exported() -> dict[str, tuple[str, set[str]]]:
    """The type and labels of each metric, by the name that the documentation uses."""
    table = {}
    for family in SEEN.families.values():
        if family.name.startswith("pulsed_") and not family.name.endswith("_created"):
            name = family.name + ("_total" if family.type == "counter" else "")
            labels = set().union(*(sample.labels for sample in family.samples)) - {"le"}
            table[name] = (family.type, labels)
    return table


def test_the_table_has_every_metric_with_its_type_and_labels():
    page = (DOCS / "monitoring.md").read_text("utf-8")
    documented = {
        name: (kind, set(re.findall(r"`(\w+)`", labels)))
        for name, kind, labels, _ in ROW.findall(page)
    }
    assert documented == exported()


def test_every_metric_is_explained_and_named_by_its_unit():
    for family in SEEN.families.values():
        if family.name.startswith("pulsed_"):
            assert family.documentation.endswith(".")
            if family.type == "histogram":
                assert family.name.endswith("_seconds")


# -- PromQL ----------------------------------------------------------------------------------------

FUNCTIONS = {"rate", "increase", "histogram_quantile", "absent", "label_values"}
AGGREGATIONS = {"sum", "max", "min", "avg", "count"}
WORDS = {"by", "and", "or", "unless"}
TOKEN = re.compile(
    r"""\s*(?:
      (?P<name>[a-zA-Z_][\w:]*)
    | (?P<range>\[(?:\d+[smhd]|\$__rate_interval)\])
    | (?P<number>\d+(?:\.\d+)?)
    | (?P<text>"(?:[^"\\]|\\.)*")
    | (?P<sign>=~|!~|!=|==|>=|<=|[-+*/(){},=<>])
    )""",
    re.VERBOSE,
)
OPENS, CLOSES = {"(": ")", "{": "}"}, {")", "}"}


def tokens(query: str) -> list[tuple[str, str]]:
    """Split a query into kinds and texts; what is no PromQL fails."""
    found, at = [], 0
    while query[at:].strip():
        match = TOKEN.match(query, at)
        assert match, f"not PromQL at {query[at:]!r}"
        assert match.lastgroup
        found.append((match.lastgroup, match[match.lastgroup]))
        at = match.end()
    return found


def uses(query: str) -> Iterator[tuple[str, set[str]]]:
    """Yield each metric of a query, with the labels that are asked of it."""
    found = tokens(query)
    grouped: set[str] = set()
    used: list[tuple[str, set[str]]] = []
    expected: list[str] = []
    for n, (kind, text) in enumerate(found):
        following = found[n + 1][1] if n + 1 < len(found) else ""
        if text in OPENS:
            expected.append(OPENS[text])
        elif text in CLOSES:
            assert expected.pop() == text, query
        elif kind == "name" and text in FUNCTIONS:
            assert following == "("
        elif kind == "name" and text in AGGREGATIONS:
            assert following in {"(", "by"}
        elif kind == "name" and text.startswith("pulsed_"):
            used.append((text, set()))
        elif kind == "name" and text not in WORDS:
            if following in {"=", "=~", "!=", "!~"} and expected[-1] == "}":
                used[-1][1].add(text)
            else:
                grouped.add(text)  # `by (…)`, or the label of label_values
    assert not expected, query
    yield from ((name, labels | grouped) for name, labels in used)


def alert_queries() -> list[Any]:
    return [
        pytest.param(rule["expr"], id=rule["alert"]) for group in RULES for rule in group["rules"]
    ]


def dashboard_queries() -> list[Any]:
    queries = [
        pytest.param(target["expr"], id=f"{panel['title']} {target['refId']}")
        for panel in DASHBOARD["panels"]
        for target in panel["targets"]
    ]
    variables = [each for each in DASHBOARD["templating"]["list"] if each["type"] == "query"]
    return queries + [pytest.param(each["query"]["query"], id=each["name"]) for each in variables]


@pytest.mark.parametrize("query", [*alert_queries(), *dashboard_queries()])
def test_queries_use_metrics_and_labels_that_are_exported(query: str):
    found = list(uses(query))
    assert found
    for name, labels in found:
        assert name in LABELS, name
        assert labels <= LABELS[name], (name, labels)


@pytest.mark.parametrize(
    "query",
    ["sum(rate(pulsed_attempts[5m])", "pulsed_x{queue=1", "sum(pulsed_x]", "rate pulsed_x", "{}}"],
)
def test_the_check_itself_finds_what_is_no_query(query: str):
    with pytest.raises((AssertionError, IndexError)):
        list(uses(query))


def test_rules_say_what_to_do_and_use_labels_that_they_have():
    for group in RULES:
        for rule in group["rules"]:
            assert set(rule["annotations"]) == {"summary", "action"}, rule["alert"]
            assert rule["labels"]["severity"] in {"warning", "critical"}
            asked = re.findall(r"\$labels\.(\w+)", json.dumps(rule["annotations"]))
            has = {"instance"}.union(*(labels for _, labels in uses(rule["expr"])))
            assert set(asked) <= has, rule["alert"]


def test_panels_do_not_overlap_and_use_the_chosen_data_source():
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])
        }
        assert max(x for x, _ in cells) < 24
        assert not cells & taken, panel["title"]
        taken |= cells
        assert {target["datasource"]["uid"] for target in panel["targets"]} == {"${datasource}"}
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))


def test_the_page_links_to_both_files():
    page = Path(DOCS / "monitoring.md").read_text("utf-8")
    assert "(monitoring/alerts.yml)" in page
    assert "(monitoring/grafana.json)" in page
