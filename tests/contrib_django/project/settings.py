"""Settings that follow the environment: which databases there are, and which has the jobs."""

import os

import django

from pulsed import Backoff
from tests.contrib_django.project.databases import entry

SECRET_KEY = "only for tests, which takes fifty characters or more of it"
ALLOWED_HOSTS = ["127.0.0.1", "testserver"]
DATABASES = {"default": entry(os.environ["SHOP_DATABASE"])}
if OTHER := os.environ.get("SHOP_POSTGRES"):
    DATABASES["postgres"] = entry(OTHER)
DATABASE_ROUTERS = ["tests.contrib_django.project.routing.Routing"]

BACKPORT = django.VERSION < (6, 0)
BACKEND = "backport.BackportBackend" if BACKPORT else "backend.PulsedBackend"
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    *(["django_tasks"] if BACKPORT else []),
    "pulsed.contrib.django",
    "tests.contrib_django.project.shop",
]
TASKS = {
    "default": {
        "BACKEND": f"pulsed.contrib.django.{BACKEND}",
        "QUEUES": ["default", "mail"],
        "OPTIONS": {"max_attempts": 2, "backoff": Backoff.linear(0.01)},
    }
}
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
STATIC_URL = "/static/"
ROOT_URLCONF = "tests.contrib_django.project.urls"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
TIME_ZONE = None  # Django would change that of the process, in which other tests run
LOGGING_CONFIG = None
