"""The database of an app: its URL and settings, and its store, opened at first use."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, NoReturn, Self

from pulsed.client.setup_lock import setup_lock
from pulsed.errors import ConfigError
from pulsed.handler.envelope import TextCodec
from pulsed.rpc.open import open_store
from pulsed.store.blocking import blocking
from pulsed.store.event_bus import Events
from pulsed.store.open import URL_VARIABLE, StoreSettings

# Imported by what needs it: a module that only declares and enqueues jobs loads faster.
if TYPE_CHECKING:
    from pulsed.engine.submissions import SubmissionRecorder
    from pulsed.store.base import Store


class AppDatabase:
    """Where the jobs of an app are. Setting it up does no I/O."""

    def __init__(
        self,
        url: str | None,
        settings: StoreSettings,
        events: Events,
        codec: TextCodec | None,
        *,
        stats: bool,
    ) -> None:
        self._url = url
        self._settings = settings
        self._bus = events
        self._codec = codec
        self._records_stats = stats
        self._store: Store | None = None
        self._submissions: SubmissionRecorder | None = None

    @property
    def url(self) -> str:
        """The database URL, given or from the environment; you can set it until the first use."""
        if url := self._url or os.environ.get(URL_VARIABLE):
            return url
        raise ConfigError(
            "No database: give the app a URL, as in Pulse('sqlite:///jobs.db'), or set "
            f"${URL_VARIABLE}."
        )

    @url.setter
    def url(self, url: str) -> None:
        with setup_lock():
            if self._store is not None:
                raise ConfigError("The app has opened its database already; set its URL earlier.")
            self._url = url

    @property
    def settings(self) -> StoreSettings:
        """How this app opens its store; you can set it until the first use."""
        return self._settings

    @settings.setter
    def settings(self, settings: StoreSettings) -> None:
        with setup_lock():
            if self._store is not None:
                raise ConfigError("The app has opened its database already; set this earlier.")
            self._settings = settings

    @property
    def store(self) -> Store:
        """The store of the jobs, opened at first use."""
        if self._store is None:
            with setup_lock():
                if self._store is None:
                    store = self._open_store()
                    store.events = self._bus
                    self._submissions = self._recorder_of(store)
                    self._store = self._with_codec(store)
        return self._store

    def _open_store(self) -> Store:
        return open_store(self.url, self._settings)

    def _store_of_workers(self) -> Store:
        return self.store

    def _with_codec(self, store: Store) -> Store:
        if self._codec is None:
            return store
        from pulsed.store.encoded import encoded  # noqa: PLC0415 - only if asked for

        return encoded(store, self._codec)

    def _recorder_of(self, store: Store) -> SubmissionRecorder | None:
        if not self._records_stats or store.is_remote:  # a server counts by itself
            return None
        from pulsed.engine.submissions import SubmissionRecorder  # noqa: PLC0415 - only producers

        return SubmissionRecorder(store)

    @contextlib.contextmanager
    def redirected(self, url: str, settings: StoreSettings) -> Iterator[None]:
        """Use another database inside of a block; ``pulsed.testing.override`` does more."""
        outside, store = (self._url, self._settings), self._store
        with setup_lock():
            counting = self._count_with(None)
            self._url, self._settings, self._store = url, settings, None
        try:
            yield
        finally:
            with setup_lock():
                self._count_with(counting)
                (self._url, self._settings), self._store = outside, store

    def _count_with(self, recorder: SubmissionRecorder | None) -> SubmissionRecorder | None:
        """Count the jobs of one database, and no longer those of another; returns the other's."""
        before, self._submissions = self._submissions, recorder
        if before is not None:
            before.stop()
        if recorder is not None:
            recorder.start()
        return before

    async def aclose(self) -> None:
        """Close the connections; the next use opens new ones."""
        if self._submissions is not None:
            await self._submissions.close()
        if self._store is not None:
            await self._store.aclose()

    close = blocking(aclose)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "A Pulse has connections and cannot be pickled; import it in the other process, or "
            "make another one there with the same URL."
        )
