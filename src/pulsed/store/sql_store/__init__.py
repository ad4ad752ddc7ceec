"""The store over any SQL engine: verbs, retries, migrations; an engine adds how to run a verb."""
