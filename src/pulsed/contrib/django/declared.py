"""The tasks that a project has declared, by the paths of their functions."""

from __future__ import annotations

from typing import Any, NamedTuple

from pulsed.contrib.django.framework import Framework


class Declared(NamedTuple):
    """A task with a handler, and the framework that it belongs to."""

    task: Any
    framework: Framework
    sender: type
    """The backend's class, which signals are sent with."""


DECLARED: dict[str, Declared] = {}
"""Every task that a module of this process has declared, by its topic."""
