"""Deterministic simulation: whole fleets in one thread, with a clock and faults of a seed's own.

The workers, schedulers, watchdogs and producers of a run are the real ones, on the real statements
over SQLite in memory. What decides their order is taken away from the machine: time, randomness,
the delay of each storage call, deaths and freezes all come from the seed. So a seed is a run.
"""
