"""The tests of Django that pulsed's backend does not pass, and why it should not."""

from collections.abc import Mapping

_OWN_LIST = "changes a result in the dummy's own list, and expects to read that again"
_HAS_RESULTS = "expects that results cannot be read again; here they can, as with the dummy"

DIFFERENCES: Mapping[str, str] = {
    "TaskTestCase.test_refresh_result": (
        "calls `refresh()` on an event loop; a read of the database would block it, and is refused"
    ),
    "DummyBackendTestCase.test_refresh_result": _OWN_LIST,
    "DummyBackendTestCase.test_refresh_result_async": _OWN_LIST,
    "ImmediateBackendTestCase.test_cannot_get_result": _HAS_RESULTS,
    "ImmediateBackendTestCase.test_cannot_refresh_result": _HAS_RESULTS,
    "ImmediateBackendTestCase.test_cannot_pass_run_after": (
        "expects that a task cannot have a time; here it can"
    ),
    (
        "ImmediateBackendTransactionTestCase.test_doesnt_wait_until_transaction_commit_by_default"
    ): "expects a task to run before the commit of the transaction that enqueues it",
}
"""Why, by the name of the test."""
