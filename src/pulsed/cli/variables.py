"""The environment variables that say which app and which database a command is about."""

APP_VARIABLE = "PULSED_APP"
FALLBACK_VARIABLE = "DATABASE_URL"
