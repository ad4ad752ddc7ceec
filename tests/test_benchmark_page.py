"""The page about the benchmarks is made from what was saved, part by part, and says it plainly."""

import dataclasses

import pytest

from benchmarks import machine, redis_server, report, saved
from benchmarks.databases import Server
from benchmarks.headline import headline
from benchmarks.parts import measure
from benchmarks.peers.peer import PEERS
from benchmarks.results import Measurement, Results, percentile, ratio, readable
from benchmarks.saved import Part, Saved
from benchmarks.scale import FIGURE, GLANCE, Scale
from benchmarks.targets import TARGETS
from benchmarks.workloads import WORKLOADS
from benchmarks.workloads.drain import peers_of

# -- the page -----------------------------------------------------------------------------------


def test_the_page_is_made_from_what_was_saved():
    kept = saved.read()

    assert kept is not None
    assert report.PAGE.read_text("utf-8") == report.text(kept)


def test_what_was_saved_answers_every_target():
    kept = saved.read()

    assert kept is not None
    assert [t for t in TARGETS if t.figure(kept.results) is None] == []


def test_the_page_names_each_missed_target_that_nobody_has_explained(monkeypatch, tmp_path):
    kept = Saved()
    kept.results = beside_peers(("pulsed, 100 slots", 30.0), ("PgQueuer", 60.0))
    monkeypatch.setattr(report, "NOTES", tmp_path / "notes.md")
    name = "drain, 100 slots (PostgreSQL)"

    assert report.missed(kept.results) == [name]
    assert f"Missed, and not explained below: {name}." in report.text(kept)

    report.NOTES.write_text("**drain, 100\nslots (PostgreSQL)**: half of it.", "utf-8")

    assert "not explained" not in report.text(kept)


def test_figures_taken_in_turns_are_compared_in_pairs():
    ours = Measurement("drain", "sqlite", "pulsed", "jobs/s", [10.0, 5.0, 1.0], "a run")
    theirs = Measurement("drain", "sqlite", "raw", "jobs/s", [20.0, 10.0, 4.0], "a run")

    assert ratio(ours, theirs) == 0.5


def test_figures_of_different_runs_are_not_compared():
    ours = Measurement("drain", "sqlite", "pulsed", "jobs/s", [10.0], "a run")
    theirs = Measurement("drain", "sqlite", "raw", "jobs/s", [20.0], "another run")

    assert ratio(ours, theirs) is None


# -- in parts -----------------------------------------------------------------------------------


HERE, THERE = {"processor": "p", "memory": "m"}, {"processor": "q", "memory": "m"}


def part(
    workload: str,
    engine: str,
    taken: str = "then",
    code: str = "abc",
    jobs: int = 1,
    machine: dict[str, str] = HERE,
) -> Part:
    return Part(workload, engine, taken, 1.5, code, {"drain": jobs}, machine)


def one_figure(workload: str, engine: str, run: str, value: float) -> Results:
    return Results(run, [Measurement(workload, engine, "pulsed", "jobs/s", [value], run)])


def two_parts() -> Saved:
    kept = Saved()
    kept.put(part("drain", "sqlite"), one_figure("drain", "sqlite", "then", 10.0))
    kept.put(part("drain", "postgres"), one_figure("drain", "postgres", "then", 30.0))
    return kept


def test_a_part_measured_again_replaces_what_was_saved_and_nothing_else():
    kept = two_parts()
    again = one_figure("drain", "sqlite", "now", 20.0)

    kept.put(part("drain", "sqlite", "now"), again)

    assert {m.engine: (m.run, m.samples) for m in kept.results} == {
        "postgres": ("then", [30.0]),
        "sqlite": ("now", [20.0]),
    }
    assert {engine: p.taken for (_, engine), p in kept.parts.items()} == {
        "postgres": "then",
        "sqlite": "now",
    }


def test_rows_that_a_part_no_longer_has_are_gone():
    kept = two_parts()
    renamed = Results("now", [Measurement("drain", "sqlite", "other", "jobs/s", [1.0], "now")])

    kept.put(part("drain", "sqlite", "now"), renamed)

    assert [m.subject for m in kept.results.of("drain", "sqlite")] == ["other"]


def test_what_is_written_is_read_again(tmp_path):
    kept = two_parts()
    kept.put(part("bulk", "sqlite", machine=THERE), one_figure("bulk", "sqlite", "then", 1.0))
    kept.results.about["Huey"] = "3; settings"

    kept.write(tmp_path / "results.json")
    found = saved.read(tmp_path / "results.json")

    assert found is not None
    assert found.parts == kept.parts
    assert list(found.results) == list(kept.results)
    assert found.results.about == kept.results.about
    assert [path.name for path in tmp_path.iterdir()] == ["results.json"]


def test_a_part_is_missing_unless_it_was_saved_in_that_size_and_of_that_code():
    kept = two_parts()
    kept.put(part("bulk", "sqlite", code="abc with changes"), Results("then"))

    assert kept.has(part("drain", "sqlite", taken=""))
    assert not kept.has(part("drain", "sqlite", jobs=2))
    assert not kept.has(part("drain", "sqlite", code="def"))
    assert not kept.has(part("enqueue", "sqlite"))
    assert not kept.has(part("drain", "sqlite", machine=THERE))
    assert not kept.has(part("bulk", "sqlite", code="abc with changes"))


def test_figures_of_another_machine_stand_in_tables_of_their_own():
    kept = two_parts()
    today = HERE | {"disk": "slower today"}
    bulk = one_figure("bulk", "sqlite", "today", 1.0)
    kept.put(part("bulk", "sqlite", "today", machine=today), bulk)
    slow = Results("today")
    for subject, rate in (("pulsed, 100 slots", 1.0), ("bare sqlite3, batches of 100", 8.0)):
        slow.add("drain", "sqlite", subject, "jobs/s", rate)

    kept.put(part("drain", "sqlite", "today", machine=THERE), slow)
    page = report.text(kept)

    assert list(kept.machines.items()) == [("p, m", today), ("q, m", THERE)]
    first, second = page.partition("### q, m")[0], page.partition("### q, m")[2]
    assert "| Bulk enqueue | SQLite | today" in first
    assert "| Drain | PostgreSQL | then" in first
    assert "| Drain | SQLite | today" in second.partition("## What")[0]
    assert "On p, m:\n\n| PostgreSQL | jobs/s |\n" in page
    assert "On q, m:\n\n| SQLite | jobs/s |\n" in page
    assert "On q, m:\n\n| workload | engine | wanted | measured | met |\n" in page
    assert "On p, m:\n\n| workload |" not in page  # nothing there is compared with anything


def test_figures_of_a_machine_are_those_of_its_parts():
    kept = two_parts()

    kept.put(part("drain", "sqlite", machine=THERE), one_figure("drain", "sqlite", "then", 20.0))

    assert [m.samples for m in kept.on("p, m").results] == [[30.0]]
    assert [m.samples for m in kept.on("q, m").results] == [[20.0]]


def test_a_page_about_one_machine_names_it_once():
    assert report.text(two_parts()).count("p, m") == 1


def test_a_part_that_fails_leaves_what_was_saved_and_the_others_go_on(monkeypatch, capsys):
    def breaking(server: Server, results: Results, scale: Scale) -> None:
        results.add("drain", server.engine, "pulsed", "jobs/s", 1.0)
        raise RuntimeError("the worker ended")

    def working(server: Server, results: Results, scale: Scale) -> None:
        results.add("bulk", server.engine, "pulsed", "jobs/s", 2.0)

    for name, act in {"drain": breaking, "bulk": working}.items():
        monkeypatch.setitem(WORKLOADS, name, dataclasses.replace(WORKLOADS[name], measure=act))
    kept = two_parts()
    after: list[int] = []

    failed = measure(
        kept,
        ("sqlite",),
        ("drain", "bulk"),
        GLANCE,
        HERE,
        missing_only=False,
        after_each=lambda found: after.append(len(found.parts)),
    )

    assert failed == ["drain on sqlite"]
    assert "the worker ended" in capsys.readouterr().err
    assert [m.samples for m in kept.results.of("drain", "sqlite")] == [[10.0]]
    assert [m.samples for m in kept.results.of("bulk", "sqlite")] == [[2.0]]
    assert after == [3]


def test_only_missing_parts_are_measured_when_that_is_asked(monkeypatch):
    def act(server: Server, results: Results, scale: Scale) -> None:
        results.add("bulk", server.engine, "pulsed", "jobs/s", 1.0)

    monkeypatch.setitem(WORKLOADS, "bulk", dataclasses.replace(WORKLOADS["bulk"], measure=act))
    monkeypatch.setattr(machine, "code", lambda: "abc")
    kept = Saved()
    after: list[Saved] = []

    def run(scale: Scale) -> None:
        measure(
            kept, ("sqlite",), ("bulk",), scale, HERE, missing_only=True, after_each=after.append
        )

    run(GLANCE)
    run(GLANCE)
    run(FIGURE)

    assert len(after) == 2


# -- peers --------------------------------------------------------------------------------------


def beside_peers(*rows: tuple[str, float], run: str = "a run") -> Results:
    found = [Measurement("drain", "postgres", name, "jobs/s", [rate], run) for name, rate in rows]
    return Results("", found)


def first_verdict(results: Results) -> float | None:
    target = next(t for t in TARGETS if t.compared == "the fastest peer")
    return target.figure(results)


def test_a_drain_is_compared_with_the_fastest_peer_and_not_with_the_bare_driver():
    results = beside_peers(
        ("pulsed, 100 slots", 30.0),
        ("Procrastinate", 10.0),
        ("PgQueuer", 60.0),
        ("bare asyncpg, batches of 500", 90.0),
    )

    assert first_verdict(results) == 0.5


def test_peers_that_pulsed_took_no_turns_with_are_no_comparison():
    assert first_verdict(beside_peers(("PgQueuer", 60.0))) is None


def test_the_headline_says_where_pulsed_is_ahead_and_where_it_is_not():
    results = beside_peers(
        ("pulsed, 500 slots", 30.0),
        ("Procrastinate", 10.0),
        ("PgQueuer", 60.0),
        ("graphile-worker", 29.9),
        ("bare asyncpg, batches of 500", 50.0),
    )

    ahead, behind, ceiling = headline(results).splitlines()

    times = "\N{MULTIPLICATION SIGN}"
    assert f"(30 jobs/s) 3.00 {times} Procrastinate." in ahead
    assert f"(30 jobs/s) 0.50 {times} PgQueuer, 1.00 {times} graphile-worker." in behind
    assert f"PostgreSQL 0.60 {times} drain with 500 slots." in ceiling


def test_the_headline_names_the_closest_of_many_peers_and_counts_the_others():
    results = beside_peers(
        ("pulsed, 500 slots", 30.0),
        ("Procrastinate", 1.0),
        ("PgQueuer", 20.0),
        ("graphile-worker", 25.0),
        ("awa", 10.0),
    )

    ahead, *_ = headline(results).splitlines()

    times = "\N{MULTIPLICATION SIGN}"
    closest = f"1.20 {times} graphile-worker, 1.50 {times} PgQueuer"
    assert ahead.endswith(f"{closest}, 3.00 to 30 {times} 2 others.")


def test_the_page_opens_with_the_headline():
    kept = saved.read()

    assert kept is not None
    assert headline(kept.results) in "\n".join(report.text(kept).splitlines()[:5])


def test_a_headline_without_peers_boasts_of_nothing():
    assert "head" not in headline(Results("")).lower()


def test_peers_take_turns_on_their_engine_and_slow_ones_get_fewer_jobs():
    names = ("huey-1", "procrastinate", "graphile-worker", "saq")
    scale = dataclasses.replace(GLANCE, peers=names)

    assert peers_of("postgres", scale) == ["procrastinate", "graphile-worker", "saq"]
    assert peers_of("sqlite", scale) == ["huey-1"]
    assert [PEERS[name].size(10_000) for name in names] == [200, 25, 10_000, 500]


def test_a_machine_without_redis_says_so(monkeypatch):
    monkeypatch.setattr("shutil.which", lambda _: None)

    with (
        pytest.raises(redis_server.RedisError, match="no redis-server on this machine"),
        redis_server.serving_redis(),
    ):
        pass


def test_the_page_says_what_each_peer_does_for_a_job():
    kept = two_parts()
    kept.put(part("drain", "sqlite"), one_figure("drain", "sqlite", "then", 1.0))
    kept.parts.clear()
    kept.results.about = {peer.title: "1.0; as it comes" for peer in PEERS.values()}

    page = report.text(kept)

    for peer in PEERS.values():
        assert f"| {peer.title} | {peer.promise.row} | {peer.promise.result} |" in page
        assert f"| {peer.title} | 1.0 | as it comes |" in page


# -- figures ------------------------------------------------------------------------------------


def test_percentiles_are_samples():
    samples = [float(number) for number in range(100, 0, -1)]

    assert [percentile(samples, percent) for percent in (0, 50, 99, 100)] == [1, 51, 100, 100]


@pytest.mark.parametrize(
    "value, text", [(12345.6, "12,300"), (999.0, "999"), (1.2345, "1.23"), (0.0, "0")]
)
def test_figures_are_written_with_three_digits(value, text):
    assert readable(value) == text
