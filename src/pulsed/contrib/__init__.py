"""Integrations with frameworks; each needs its framework, and nothing else imports them."""
