"""The client: inspect your jobs, wait for them, cancel and retry them.

Every coroutine method has a blocking twin without the ``a``. Nothing is imported here: a command
needs few of these modules, and has to start fast.
"""
