"""The verbs on controls over the network."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

from pulsed.batches import TRANSACTION, Limits, batches
from pulsed.model.audit import Operator
from pulsed.model.control import Control, ControlKey, ControlScope, Numbers
from pulsed.model.limit import LimitUse
from pulsed.rpc.client.connection import ServerConnection
from pulsed.rpc.generated import pulse_pb2 as pb
from pulsed.rpc.messages import audit as to_audit
from pulsed.rpc.messages import controls as to
from pulsed.rpc.messages import values
from pulsed.rpc.messages.contract import PART
from pulsed.store.controls import CONTROL_PAGE, ControlStore


class RemoteControls(ControlStore):
    """Controls whose store is behind a server."""

    def __init__(self, connection: ServerConnection) -> None:
        self._connection = connection

    async def get(self, scope: ControlScope, name: str) -> Control:
        return await self._act("GetControl", scope, name, None)

    async def list_page(
        self,
        scope: ControlScope | None = None,
        *,
        limit: int = CONTROL_PAGE,
        after: ControlKey | None = None,
    ) -> list[Control]:
        rows: list[Control] = []
        while True:
            request = pb.ListControlsRequest(
                scope=None if scope is None else to.SCOPES[scope],
                limit=limit - len(rows),
                after_scope=None if after is None else to.SCOPES[after.scope],
                after_name=None if after is None else after.name,
            )
            answer = await self._connection.call("ListControls", request)
            rows += map(to.control_of, answer.controls)
            if not answer.cut:
                return rows
            after = rows[-1].key

    async def pause(self, scope: ControlScope, name: str, *, by: Operator | None = None) -> Control:
        return await self._act("PauseControl", scope, name, by)

    async def resume(
        self, scope: ControlScope, name: str, *, by: Operator | None = None
    ) -> Control:
        return await self._act("ResumeControl", scope, name, by)

    async def override(
        self,
        scope: ControlScope,
        name: str,
        numbers: Numbers,
        *,
        fields: Collection[str] | None = None,
        by: Operator | None = None,
    ) -> Control:
        if fields is not None and not fields:
            return await self.get(scope, name)
        request = pb.OverrideControlRequest(
            scope=to.SCOPES[scope],
            name=name,
            numbers=to.numbers_message(numbers),
            fields=fields,
            operator=to_audit.operator_message(by),
        )
        return to.control_of(await self._connection.call("OverrideControl", request))

    async def clear(self, scope: ControlScope, name: str, *, by: Operator | None = None) -> Control:
        return await self._act("ClearControl", scope, name, by)

    async def declare(self, scope: ControlScope, declared: Mapping[str, Numbers]) -> dict[str, str]:
        messages = [
            pb.DeclareControlsRequest.Declared(name=name, numbers=to.numbers_message(numbers))
            for name, numbers in declared.items()
        ]
        effects: dict[str, str] = {}
        limits = Limits(TRANSACTION.items, PART.bytes)
        for part in batches(messages, lambda each: each.ByteSize(), limits):
            request = pb.DeclareControlsRequest(scope=to.SCOPES[scope], declared=part)
            answer = await self._connection.call("DeclareControls", request)
            effects |= dict.fromkeys(answer.changed, "changed")
            effects |= dict.fromkeys(answer.unchanged, "unchanged")
        return effects

    async def limit_use(self, name: str, *, keys: int = 0) -> LimitUse:
        request = pb.GetLimitUseRequest(name=name, keys=keys)
        return to.limit_use_of(await self._connection.call("GetLimitUse", request))

    async def rates(self, scope: ControlScope, keys: Sequence[str]) -> dict[str, datetime]:
        request = pb.GetRatesRequest(scope=to.SCOPES[scope], keys=keys)
        answer = await self._connection.call("GetRates", request)
        return {each.key: values.instant(each.tat) for each in answer.rates}

    async def _act(
        self, method: str, scope: ControlScope, name: str, by: Operator | None
    ) -> Control:
        request = pb.ControlName(
            scope=to.SCOPES[scope], name=name, operator=to_audit.operator_message(by)
        )
        return to.control_of(await self._connection.call(method, request))
