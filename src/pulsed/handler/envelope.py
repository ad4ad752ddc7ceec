"""User data that a codec has encoded: what a codec is, and the envelope that it is stored in.

An envelope is a JSON object with one key, so that every column, check and message that takes JSON
takes it as well; in an error text it is a prefix. A process without the codec passes envelopes on
and shows them. Whoever needs what is inside raises ``CodecError``.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol
from uuid import UUID

import msgspec

from pulsed.errors import CodecError, InvalidPayload
from pulsed.handler.payload import MAX_PAYLOAD, MAX_TEXT, UNSTORABLE, clean_text

_KEY = "pulsed:encrypted"
_BEGIN = f'{{"{_KEY}":'
_TEXT = f"{_KEY}:"
SHORTEST_CUT = 256
"""Bytes of an error text that are not cut any more."""


class CodecContext(NamedTuple):
    """What a text is and where it belongs. ``bytes(context)`` is what a cipher can bind to it."""

    what: str
    """``payload``, ``result``, ``checkpoint``, ``signal``, ``progress``, ``item`` or ``error``."""
    topic: str | None = None
    """Of a payload: the topic. The job may not be known yet, as for a schedule."""
    job_id: UUID | None = None
    """Of everything else: the job."""

    def __bytes__(self) -> bytes:
        return f"{self.what}:{self.topic if self.job_id is None else self.job_id}".encode()

    def __str__(self) -> str:
        of = f"of {self.topic!r}" if self.job_id is None else f"of job {self.job_id}"
        return f"{self.what} {of}"


class TextCodec(Protocol):
    """Encodes what user code writes before it is stored, and decodes it again: encryption.

    If it has an attribute ``accepts_plain`` that is False, data that was stored without a codec is
    refused; by default it is taken as it is.
    """

    def encode(self, text: str, context: CodecContext, /) -> str:
        """Return the text to store: any characters but NUL and lone surrogates."""

    def decode(self, text: str, context: CodecContext, /) -> str:
        """Return what ``encode`` was given, or raise."""


def is_envelope(text: str | None) -> bool:
    """Whether a stored text, JSON or not, is an envelope."""
    return text is not None and text.startswith((_BEGIN, _TEXT))


def readable(what: str, text: str) -> str:
    """Return a stored JSON text, or raise ``CodecError`` if it is an envelope."""
    if not text.startswith(_BEGIN):
        return text
    problem = _opened(text).get("problem")
    why = "it has no codec" if problem is None else str(problem)
    raise CodecError(
        f"{what} is encrypted, and this process cannot decrypt it: {why}. Give Pulse(codec=...) "
        "the key that it was written with. Nothing is lost: it stays as it is, and can be read "
        "when the key is there."
    )


def plain_value(what: str, text: str | None) -> Any:
    """Return the value of a stored JSON text; raises ``CodecError`` if it is an envelope."""
    return msgspec.json.decode(readable(what, text or "null"))


class Envelopes:
    """Puts texts into envelopes and takes them out again, with one codec."""

    def __init__(self, codec: TextCodec) -> None:
        self._codec = codec
        self._accepts_plain = bool(getattr(codec, "accepts_plain", True))

    def json(self, text: str, context: CodecContext) -> str:
        """Return the envelope of a JSON text; raises if it cannot be encoded or is too large."""
        if text.startswith(_BEGIN):  # of something that could not be read
            raise CodecError(f"The {context} is encrypted already; nothing was stored.")
        sealed = msgspec.json.encode({_KEY: self._encoded(text, context)})
        if len(sealed) > MAX_PAYLOAD:
            raise InvalidPayload(
                f"The {context} has {len(sealed):,} bytes once it is encrypted; at most "
                f"{MAX_PAYLOAD:,} can be stored."
            )
        return sealed.decode()

    def text(self, text: str, context: CodecContext) -> str:
        """Return the envelope of an error text, which is cut so that the envelope fits.

        A text that the codec cannot encode is left out: a report must get through.
        """
        limit = MAX_TEXT
        while True:
            try:
                sealed = _TEXT + self._encoded(clean_text(text, limit), context)
            except CodecError as error:
                return f"(left out: {error})"
            if len(sealed.encode()) <= MAX_TEXT or limit <= SHORTEST_CUT:
                return sealed
            limit //= 2

    def json_in(self, text: str, context: CodecContext) -> str:
        """Return the JSON text in an envelope; of one that cannot be opened, another with why."""
        if not text.startswith(_BEGIN):
            refused = "it is stored as plain data, which the codec refuses"
            return text if self._accepts_plain else _unreadable("", refused)
        sealed = str(_opened(text).get(_KEY, ""))
        try:
            return self._decoded(sealed, context)
        except CodecError as error:
            return _unreadable(sealed, str(error))

    def text_in(self, text: str, context: CodecContext) -> str:
        """Return the error text in an envelope, or the envelope if it cannot be opened.

        Plain ones are always taken: what the engine itself writes has no secrets.
        """
        if not text.startswith(_TEXT):
            return text
        try:
            return self._decoded(text.removeprefix(_TEXT), context)
        except CodecError:
            return text

    def _encoded(self, text: str, context: CodecContext) -> str:
        try:
            sealed = self._codec.encode(text, context)
        except Exception as error:
            raise CodecError(
                f"The codec cannot encode the {context}: {type(error).__name__}."
            ) from error
        if not isinstance(sealed, str) or UNSTORABLE.search(sealed):
            raise CodecError(
                f"The codec has to encode the {context} as a text without NUL and lone surrogates, "
                f"not as {type(sealed).__name__}."
            )
        return sealed

    def _decoded(self, sealed: str, context: CodecContext) -> str:
        try:
            return self._codec.decode(sealed, context)
        except Exception as error:
            raise CodecError(f"the codec raised {type(error).__name__}") from error


def _opened(text: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.MsgspecError:
        return {}


def _unreadable(sealed: str, problem: str) -> str:
    return msgspec.json.encode({_KEY: sealed, "problem": problem}).decode()
