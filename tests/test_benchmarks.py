"""The benchmark runs and says something about every workload; its numbers are not judged here."""

from benchmarks.__main__ import measure


def test_every_workload_is_measured_on_sqlite():
    rates = measure("sqlite", jobs=100, repeat=1)

    assert len(rates) == 4
    assert all(rate > 0 for rate in rates.values())


def test_every_workload_is_measured_on_postgres():
    rates = measure("postgres", jobs=100, repeat=1)

    assert len(rates) == 4
    assert all(rate > 0 for rate in rates.values())
