"""Joining: documents that come little by little, as one stream cut at every S tokens, resumable at any row."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from stoker.errors import ConfigError, StateError
from stoker.tokens.batch import LMBatch
from stoker.tokens.layouts.base import state_number
from stoker.tokens.layouts.windows import stream_starts, windows
from stoker.tokens.settings import LMSettings
from stoker.tokens.sources.ragged import Ragged
from stoker.types import Ids


class Joiner:
    """Joins documents and cuts the stream into rows; what does not fill a batch is carried on to the next.

    Documents are numbered in the order in which they are fed. Batches depend on nothing but the documents and these
    arguments; the state is two numbers: the document in which the next row begins, and the token in it.

    Args:
        settings: see :class:`LMSettings`.
        batch_size: rows in a batch; all but the last have so many. It may be another after a resume.
        state: from :meth:`state_dict`, to go on there; then feed documents from number :attr:`next_document` on.

    Raises:
        ConfigError: ``batch_size`` is less than 1.
        StateError: the state is of a joiner with other settings.
    """

    def __init__(self, settings: LMSettings, batch_size: int, *, state: Mapping[str, Any] | None = None) -> None:
        if batch_size < 1:
            raise ConfigError(f"batch_size={batch_size}: at least 1")
        self._settings = settings
        self._batch_size = batch_size
        self._parts: deque[_Part] = deque()
        self._tokens = 0  # in all parts, eos counted
        self._number = 0  # of the first part's first document
        self._row = 0  # of the document there in which the next row begins
        self._token = 0  # where it begins in that part
        self._finished = False
        if state is not None:
            if state.get("version") != 1 or state.get("eos") != (settings.eos_id is not None):
                raise StateError(f"not the state of a joiner of this version with these settings: {dict(state)!r}")
            self._number, self._token = state_number(state, "document"), state_number(state, "token")

    @property
    def next_document(self) -> int:
        """The number of the document to be fed next."""
        return self._number + sum(len(part.documents) for part in self._parts)

    def feed(self, documents: Ragged) -> Iterator[LMBatch]:
        """Take in the next documents, all at once, and yield the batches that are ready.

        Batches that were not taken come with those of the next call.

        Raises:
            FormatError: when a batch is made, an id is not in the vocabulary.
            StateError: the first document after a resume is shorter than what was delivered of it.
            ConfigError: :meth:`finish` was called before.
        """
        if self._finished:
            raise ConfigError("this joiner is finished: make a new one for more documents")
        part = _Part(documents, stream_starts(documents.lengths, self._settings))
        if not self._parts and len(documents) and self._token > int(part.starts[1]):
            raise StateError(
                f"document {self._number} has {int(part.starts[1])} tokens, of which {self._token} were delivered: has "
                "the data changed?"
            )
        if len(documents):
            self._parts.append(part)
            self._tokens += part.tokens
        return self._batches(whole=True)

    def finish(self, *, remainder: bool | None = None) -> Iterator[LMBatch]:
        """Yield the last batches, of which the last may have fewer rows.

        Args:
            remainder: fill the last row with padding, where tokens do not; else leave those tokens out. Default: fill it
                where there is a ``pad_id``.
        """
        self._finished = True
        filled = self._settings.pad_id is not None if remainder is None else remainder
        return self._batches(whole=not filled, last=True)

    def state_dict(self) -> dict[str, Any]:
        """The position after the batch that was yielded last; JSON-serialisable."""
        return {
            "version": 1,
            "document": self._number + self._row,
            "token": self._token - (int(self._parts[0].starts[self._row]) if self._parts else 0),
            "eos": self._settings.eos_id is not None,
        }

    def _batches(self, *, whole: bool, last: bool = False) -> Iterator[LMBatch]:
        settings, size = self._settings, self._settings.seq_len
        # A label across documents at the end of a row needs the first token of the document that follows.
        ahead = int(not last and settings.cross_document_labels and settings.labels == "shifted")
        while True:
            left = self._tokens - self._token
            rows = min((left - ahead) // size if whole else -(-left // size), self._batch_size)
            if rows < (1 if last else self._batch_size):
                self._let_go()
                return
            end = self._token + min(rows * size, left)
            batch = windows(
                self._until(min(end + 1, self._tokens)),
                self._token - int(self._parts[0].starts[self._row]),
                rows,
                settings,
                first_document=self._number + self._row,
            )
            self._advance(end)
            yield batch

    def _until(self, end: int) -> Ragged:
        """The documents from the current one to that of token ``end - 1``. Only where they lie in two parts are they copied:
        parts may be as large as a row group, a batch is not."""
        found = []
        row, before = self._row, 0
        for part in self._parts:
            stop = int(np.searchsorted(part.starts, end - before, side="left"))
            found.append(part.documents[row:stop])
            row, before = 0, before + part.tokens
            if before >= end:
                break
        return Ragged.concat(found)

    def _advance(self, token: int) -> None:
        while self._parts and token >= self._parts[0].tokens:
            part = self._parts.popleft()
            self._tokens -= part.tokens
            self._number += len(part.documents)
            token -= part.tokens
        self._token = token
        self._row = int(np.searchsorted(self._parts[0].starts, token, side="right")) - 1 if self._parts else 0

    def _let_go(self) -> None:
        """Keep a copy of the few documents that are left of a part, not its whole memory."""
        if len(self._parts) != 1:
            return
        part = self._parts[0]
        rest = part.documents[self._row :]
        if 4 * rest.values.size < part.documents.values.size:
            self._token -= int(part.starts[self._row])
            kept = rest.take(np.arange(len(rest)))
            self._parts[0] = _Part(kept, stream_starts(kept.lengths, self._settings))
            self._tokens = self._parts[0].tokens
            self._number += self._row
            self._row = 0


@dataclass(frozen=True, slots=True)
class _Part:
    """Documents that were fed together, and where they begin in the stream of them."""

    documents: Ragged
    starts: Ids

    @property
    def tokens(self) -> int:
        return int(self.starts[-1])
