"""The doctor: checks a live database and reports what is well and what is not."""
