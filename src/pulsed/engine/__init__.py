"""The worker: claiming, running, heartbeats, settling, and the upkeep around them."""
