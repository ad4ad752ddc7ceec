"""The methods with which clients read and change controls."""

from __future__ import annotations

from pulsed.model.checked import checked_count, checked_name
from pulsed.model.control import Control, ControlKey, ControlScope
from pulsed.rpc.generated import pulse_pb2 as pb
from pulsed.rpc.messages import controls as to
from pulsed.rpc.messages import values
from pulsed.rpc.server.access import Caller
from pulsed.rpc.server.checks import controls as checks
from pulsed.rpc.server.services.backend import LARGEST_PAGE, Backend, operator_of
from pulsed.rpc.server.sized_page import SizedPage


class ControlService:
    """The methods of this name in the contract."""

    def __init__(self, backend: Backend) -> None:
        self._controls = backend.store.controls
        self._check_batch = backend.check_batch

    async def get_control(self, request: pb.ControlName, caller: Caller) -> pb.Control:
        return to.control_message(await self._controls.get(*checks.key_of(request, caller)))

    async def list_controls(
        self, request: pb.ListControlsRequest, caller: Caller
    ) -> pb.ListControlsResponse:
        scope = checks.scope(request.scope) if request.scope else None
        limit = checked_count("limit", request.limit or LARGEST_PAGE, 1, LARGEST_PAGE)
        begin = None
        if request.after_scope:
            begin = ControlKey(checks.scope(request.after_scope), request.after_name)

        async def read(count: int, last: Control | None) -> list[Control]:
            """Read ``count`` controls that the caller may see; fewer if there are no more."""
            after = begin if last is None else last.key
            own: list[Control] = []
            while len(own) < count:
                rows = await self._controls.list_page(scope, limit=count, after=after)
                own += (row for row in rows if caller.may_control(*row.key))
                if len(rows) < count:
                    break
                after = rows[-1].key
            return own[:count]

        found = SizedPage(to.control_message, limit=limit)
        await found.fill_from(read)
        return pb.ListControlsResponse(controls=found.messages, cut=found.is_cut)

    async def pause_control(self, request: pb.ControlName, caller: Caller) -> pb.Control:
        key, by = checks.key_of(request, caller), operator_of(request, caller)
        return to.control_message(await self._controls.pause(*key, by=by))

    async def resume_control(self, request: pb.ControlName, caller: Caller) -> pb.Control:
        key, by = checks.key_of(request, caller), operator_of(request, caller)
        return to.control_message(await self._controls.resume(*key, by=by))

    async def override_control(
        self, request: pb.OverrideControlRequest, caller: Caller
    ) -> pb.Control:
        key, by = checks.key_of(request, caller), operator_of(request, caller)
        numbers = checks.numbers(request.numbers)
        fields = checks.fields(request.fields)
        return to.control_message(
            await self._controls.override(*key, numbers, fields=fields, by=by)
        )

    async def clear_control(self, request: pb.ControlName, caller: Caller) -> pb.Control:
        key, by = checks.key_of(request, caller), operator_of(request, caller)
        return to.control_message(await self._controls.clear(*key, by=by))

    async def declare_controls(
        self, request: pb.DeclareControlsRequest, caller: Caller
    ) -> pb.DeclareControlsResponse:
        self._check_batch(request.declared)
        scope = checks.scope(request.scope)
        declared = {}
        for each in request.declared:
            name = checked_name(f"name of the {scope}", each.name)
            caller.check_control(scope, name)
            declared[name] = checks.numbers(each.numbers)
        answer = pb.DeclareControlsResponse()
        for name, effect in (await self._controls.declare(scope, declared)).items():
            getattr(answer, effect).append(name)
        return answer

    async def get_limit_use(self, request: pb.GetLimitUseRequest, caller: Caller) -> pb.LimitUse:
        name = checked_name("name of the limit", request.name)
        caller.check_control(ControlScope.LIMIT, name)
        keys = checked_count("keys", request.keys, 0, checks.MOST_RATES)
        return to.limit_use_message(await self._controls.limit_use(name, keys=keys))

    async def get_rates(self, request: pb.GetRatesRequest, caller: Caller) -> pb.GetRatesResponse:
        scope = checks.scope(request.scope)
        keys = checks.rate_keys(request.keys, scope, caller)
        found = await self._controls.rates(scope, keys)
        return pb.GetRatesResponse(
            rates=[
                pb.GetRatesResponse.Rate(key=key, tat=values.stamp(tat))
                for key, tat in found.items()
            ]
        )
