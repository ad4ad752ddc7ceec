"""A small Django project, for tests in this process and in others."""
