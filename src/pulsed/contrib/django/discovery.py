"""Imports the jobs and tasks of a project: ``jobs.py`` and ``tasks.py`` of every installed app.

It is one of the project app's ``imports``, so that a worker loads it, and whoever looks a topic up.
"""

from __future__ import annotations

import django
from django.apps import apps
from django.utils.module_loading import autodiscover_modules

MODULES = ("jobs", "tasks")

if not apps.ready:  # `pulsed worker pulsed.contrib.django:app`, without manage.py
    django.setup(set_prefix=False)
autodiscover_modules(*MODULES)
