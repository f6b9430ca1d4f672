"""What all writers do at the end of their ``with`` statement."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Final, Self

from stoker.errors import ConfigError

__all__ = ["Finishing"]

_FORKED: Final = "that of the process from which this one was forked"


class Finishing(ABC):
    """A writer that is finished where its ``with`` statement ends well, and aborted where it does not."""

    _closed: str | None = None
    """How it was closed, if it was."""

    def after_fork(self) -> None:
        """See :class:`~stoker.concurrency.forks.Forkable`: the threads that store, and what they store, are the parent's."""
        if self._closed is None:
            self._closed = _FORKED

    @abstractmethod
    def finish(self) -> None:
        """Store what is left, and make it count."""

    @abstractmethod
    def abort(self) -> None:
        """Stop. Does nothing where the writer is closed."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.abort()
        elif self._closed is None:
            self.finish()

    def _check_unclosed(self) -> None:
        """
        Raises:
            ConfigError: the writer is closed.
        """
        if self._closed == _FORKED:
            raise ConfigError(f"this writer is {_FORKED}: have one writer in each process, each with its own directory")
        if self._closed is not None:
            raise ConfigError(f"this writer is {self._closed}: make a new one, with append=True to add to its dataset")
