"""The store over any SQL engine: verbs, retries, migrations. An engine only runs the verbs."""
