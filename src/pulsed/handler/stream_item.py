"""Items of streams as JSON."""

from __future__ import annotations

from typing import Any

from pulsed.batches import text_size
from pulsed.errors import InvalidPayload
from pulsed.handler.payload import encode_untyped
from pulsed.model.stream import LARGEST_ITEM


def encode_item(value: Any) -> str:
    """Return an item as JSON text; raises ``InvalidPayload`` if it cannot be stored."""
    text = encode_untyped("The item", value)
    if (size := text_size(text)) > LARGEST_ITEM:
        raise InvalidPayload(
            f"The item would take {size:,} bytes as JSON, and the limit is {LARGEST_ITEM:,}. Emit "
            "it in parts, or store it somewhere else and emit a reference to it."
        )
    return text
