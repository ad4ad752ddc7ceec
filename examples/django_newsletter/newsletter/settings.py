"""Settings for development; the folder of the database comes from ``run.py``."""

import os
from pathlib import Path

import django

BASE_DIR = Path(os.environ.get("NEWSLETTER_FOLDER", Path(__file__).resolve().parent.parent))
SECRET_KEY = "not a secret: this project never leaves your machine"
DEBUG = True
IS_OLD = django.VERSION < (6, 0)  # then the Tasks framework comes from django-tasks
INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    *(["django_tasks"] if IS_OLD else []),
    "pulsed.contrib.django",
    "subscribers",
]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": BASE_DIR / "newsletter.sqlite3",
        "OPTIONS": {"transaction_mode": "IMMEDIATE", "timeout": 20},
    }
}
BACKEND = "backport.BackportBackend" if IS_OLD else "backend.PulsedBackend"
TASKS = {
    "default": {
        "BACKEND": f"pulsed.contrib.django.{BACKEND}",
        "QUEUES": ["default", "mail"],
        "OPTIONS": {"max_attempts": 5},
    }
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
TIME_ZONE = "UTC"
