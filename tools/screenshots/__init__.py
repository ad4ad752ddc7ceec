"""Pictures of the dashboard for the docs, taken of a shop that never was: `dev.py screenshots`."""
