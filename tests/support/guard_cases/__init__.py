"""Statements that concern a row, and what takes the row out of each of their conditions."""
