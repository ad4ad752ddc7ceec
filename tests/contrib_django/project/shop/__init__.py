"""The one app of the project."""
