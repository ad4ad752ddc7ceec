"""What the services of a server have in common: the store, and the checks before each call."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pulsed.model.audit import Operator
from pulsed.rpc.generated import pulse_pb2 as pb
from pulsed.rpc.server.access import Caller
from pulsed.rpc.server.checks import items as checks
from pulsed.rpc.server.scopes import Scopes
from pulsed.rpc.server.turns import Turns
from pulsed.store.base import Store

T = TypeVar("T")

LARGEST_PAGE = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """The store behind the services, and the limits on requests."""

    store: Store
    scopes: Scopes
    largest_batch: int
    hint: Callable[[], object]
    """Called when jobs may be due without a notification; the store notifies of all others."""
    describe: Callable[[], pb.GetServerResponse]
    turns: Turns = field(default_factory=Turns)

    def check_batch(self, items: Any) -> None:
        """Refuse a request with too many items."""
        checks.checked_batch(items, self.largest_batch)

    async def converted(
        self, convert: Callable[[Any], T], items: Iterable[Any], request: Any, caller: Caller
    ) -> list[T]:
        """Convert the items of a request, if they are not too many; the first bad one raises."""
        self.check_batch(items)
        return await self.turns.each(convert, items, request, caller)


def operator_of(request: Any, caller: Caller) -> Operator:
    """Return the operator: the caller, by its token, with the name and detail that it claims."""
    stated = request.operator
    roles = ", ".join(sorted(caller.roles))
    return Operator(caller.name, roles, claimed=stated.name, detail=stated.detail)
