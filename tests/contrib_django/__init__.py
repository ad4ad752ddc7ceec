"""pulsed in a Django project."""
