"""The permissions of the dashboard. The jobs themselves have no model: see ``app.jobs``."""

from __future__ import annotations

from typing import ClassVar

from django.db import models


class JobAccess(models.Model):  # noqa: DJ008 - there are no instances
    """What permissions are about. It has no table: Django neither creates nor reads one."""

    class Meta:
        """Who may see jobs, and who may change them."""

        app_label = "pulsed"
        managed = False
        default_permissions = ()
        verbose_name = "job"
        permissions: ClassVar = [
            ("view_jobs", "Can see jobs, without their payloads"),
            ("operate_jobs", "Can see payloads, and retry, cancel and signal jobs"),
            ("administer_jobs", "Can enqueue, edit and delete jobs, too"),
        ]
