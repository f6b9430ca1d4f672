"""Handles of videos and sounds, whose decoders stay open between clips: the most recently used of a process."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, Generic, Protocol, Self, TypeVar

from stoker.concurrency.forks import reset_in_children
from stoker.formats.media.source import MediaSource
from stoker.policy import MOST_DECODERS

_F = TypeVar("_F")


class Closable(Protocol):
    """A decoder."""

    def close(self) -> None: ...


class MediaDecoder(Closable, Protocol[_F]):
    """An open video or sound; ``facts`` are those that its header tells."""

    facts: _F


_D = TypeVar("_D", bound=Closable)
_M = TypeVar("_M", bound=MediaDecoder[Any])


class _OpenDecoders:
    """Decoders that nobody uses now, by the number of their handle; the least recently used first.

    There is no lock, which a finalizer could find held by its own thread: each step is one operation of a dict. (Those of
    an ``OrderedDict`` need one where Python has none of its own.)
    """

    def __init__(self) -> None:
        self._idle: dict[int, Closable] = {}
        reset_in_children(self)

    def after_fork(self) -> None:
        """See :class:`~stoker.concurrency.forks.Forkable`: a decoder of the parent stays the parent's."""
        self._idle = {}

    def __len__(self) -> int:
        return len(self._idle)

    def take(self, number: int) -> Closable | None:
        return self._idle.pop(number, None)

    def put(self, number: int, decoder: Closable) -> None:
        before = self._idle.pop(number, None)  # of another thread, which used the same handle
        self._idle[number] = decoder
        if before is not None:
            before.close()
        if len(self._idle) > MOST_DECODERS:
            for oldest in list(self._idle)[:-MOST_DECODERS]:
                self.drop(oldest)

    def drop(self, number: int) -> None:
        decoder = self._idle.pop(number, None)
        if decoder is not None:
            decoder.close()


OPEN: Final = _OpenDecoders()
_NUMBERS: Final = itertools.count()


class DecoderOf(Generic[_D]):
    """The decoder of a handle: open from its first use on, as long as it is among the most recently used of the process.

    Args:
        handle: whose it is; the decoder is closed with it.
        make: opens one.
    """

    __slots__ = ("_make", "_number")

    def __init__(self, handle: object, make: Callable[[], _D]) -> None:
        self._make = make
        self._number = next(_NUMBERS)
        weakref.finalize(handle, OPEN.drop, self._number).atexit = False

    @contextmanager
    def used(self) -> Iterator[_D]:
        """The decoder, for this thread alone. One that fails is closed."""
        found = OPEN.take(self._number)
        decoder: _D = self._make() if found is None else found  # type: ignore[assignment]
        try:
            yield decoder
        except BaseException:
            decoder.close()
            raise
        OPEN.put(self._number, decoder)


class MediaHandle(Generic[_M, _F]):
    """A video or a sound that is opened when it is first used. May be used by several threads, and pickled."""

    __slots__ = ("__weakref__", "_decoder", "_facts", "_source")

    @classmethod
    def of(cls, source: MediaSource) -> Self:
        """The video or sound of a source."""
        made = cls.__new__(cls)
        made._begin(source)
        return made

    def _begin(self, source: MediaSource) -> None:
        raise NotImplementedError

    def _open_by(self, make: Callable[[MediaSource], _M], source: MediaSource) -> None:
        """Have ``make`` open the source on first use."""
        self._source = source
        self._facts: _F | None = None
        self._decoder: DecoderOf[_M] = DecoderOf(self, partial(make, source))

    def _read_facts(self) -> _F:
        if self._facts is None:
            with self._decoder.used() as decoder:
                self._facts = decoder.facts
        return self._facts

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).of, (self._source,)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self._source.where}>"
