"""Jobs from the outside: look at one, wait for it, change its course.

Every coroutine method has a blocking twin without the ``a``. Nothing is imported here: a command
needs few of these modules, and somebody waits for it.
"""
