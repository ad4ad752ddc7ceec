"""Takes each guard out of each statement, and runs the tests that use it: one must fail."""
