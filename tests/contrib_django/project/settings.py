"""Settings that follow the environment: which databases there are, and which has the jobs."""

import os
from urllib.parse import unquote, urlsplit

import django

from pulsed import Backoff

PASSWORDS = {"username": "USER", "password": "PASSWORD", "hostname": "HOST", "port": "PORT"}


def postgres(url: str) -> dict[str, object]:
    """The entry of DATABASES for a URL of the test suite."""
    parts = urlsplit(url)
    given = {key: unquote(str(getattr(parts, name) or "")) for name, key in PASSWORDS.items()}
    options = dict(pair.split("=") for pair in parts.query.split("&") if pair)
    host = {"HOST": unquote(options.pop("host"))} if "host" in options else {}
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parts.path.lstrip("/"),
        **given,
        **host,
        "OPTIONS": options,
        "CONN_MAX_AGE": 60,
    }


def sqlite(path: str) -> dict[str, object]:
    """The entry of DATABASES for a file."""
    return {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": path,
        "OPTIONS": {"transaction_mode": "IMMEDIATE", "timeout": 20},
        "TEST": {"NAME": os.environ.get("SHOP_TEST_DATABASE")},
    }


def entry(place: str) -> dict[str, object]:
    """The entry of DATABASES for a URL of PostgreSQL, or for a file."""
    return postgres(place) if place.startswith("postgresql:") else sqlite(place)


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
