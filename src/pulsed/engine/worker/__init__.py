"""A worker: claims jobs, runs them, renews their leases, reports how they ended."""
