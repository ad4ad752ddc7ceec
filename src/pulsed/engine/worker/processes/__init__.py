"""Processes that run the jobs of handlers with ``executor="process"``."""
