"""Items of streams to messages and back."""

from __future__ import annotations

from typing import Any

from pulsed.model.stream import Emission, StreamItem
from pulsed.rpc.generated import pulse_pb2 as pb
from pulsed.rpc.messages import jobs as to
from pulsed.rpc.messages.conversion import Conversion

_item = Conversion(StreamItem, pb.StreamItem)
item_message = _item.message
"""Return an item as a message."""
item_of = _item.value
"""Return the item of a message."""


def emission_message(emission: Emission) -> pb.Emission:
    """Return consecutive items as a message."""
    return pb.Emission(
        lease=to.lease_message(emission.lease),
        run=emission.run,
        first=emission.first,
        values=emission.values,
    )


def emission_of(message: Any) -> Emission:
    """Return the items of a message."""
    lease = to.lease_of(message.lease)
    return Emission(lease, message.run, message.first, tuple(message.values))
