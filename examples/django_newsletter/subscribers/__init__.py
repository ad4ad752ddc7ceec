"""Readers and their mails."""
