"""pulsed in the public long-horizon benchmark of PostgreSQL job queues.

That harness (hardbyte/postgresql-job-queue-benchmarking) starts one process for each system, tells
it by the environment how many jobs to produce and consume, and reads samples, a JSON object in each
line, from its output. ``adapter.json`` is what it needs to know before.
"""
