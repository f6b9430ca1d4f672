"""Rows of tokens of real text that every machine has: the source files of Python's standard library."""

from __future__ import annotations

import sysconfig
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

END_OF_FILE = "<|endoffile|>"
# Not in every installation of Python, or not its own.
_LEFT_OUT = frozenset({"site-packages", "dist-packages", "test", "tests", "idle_test"})
_FILES_PER_STEP = 16


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file: its path below the standard library, and its text."""

    path: str
    text: str


@dataclass(frozen=True, slots=True)
class Rows:
    """A corpus as rows of one length.

    Attributes:
        tokens: uint16 of shape ``(rows, length)``.
        files: for each row, the file that its first token comes from.
    """

    tokens: NDArray[np.uint16]
    files: list[str]

    def __len__(self) -> int:
        return len(self.files)


def standard_library(limit: int | None = None) -> list[SourceFile]:
    """The source files of this Python's standard library, sorted by path, up to ``limit`` characters."""
    root = Path(sysconfig.get_path("stdlib"))
    found = [path.relative_to(root) for path in root.rglob("*.py")]
    files: list[SourceFile] = []
    left = limit
    for path in sorted(path for path in found if not _LEFT_OUT & set(path.parts)):
        text = (root / path).read_text(encoding="utf-8", errors="replace")
        if left is not None:
            if left <= 0:
                break
            left -= len(text)
        files.append(SourceFile(path.as_posix(), text))
    if not files:
        raise FileNotFoundError(f"{root} holds no source files: this Python came without them, use another")
    return files


def train_tokenizer(files: Sequence[SourceFile], vocabulary: int, tick: Callable[[int], None]) -> Tokenizer:
    """Train a byte-level BPE tokenizer; ``tick`` is called with the characters of each file that was read."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END_OF_FILE],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )

    def texts() -> Iterator[str]:
        for file in files:
            yield file.text
            tick(len(file.text))

    tokenizer.train_from_iterator(texts(), trainer, length=len(files))
    return tokenizer


def to_rows(tokenizer: Tokenizer, files: Sequence[SourceFile], length: int, tick: Callable[[int], None]) -> Rows:
    """Encode files, concatenate them and cut them into rows; a partial row at the end is dropped."""
    end = tokenizer.token_to_id(END_OF_FILE)
    parts: list[NDArray[np.uint16]] = []
    for first in range(0, len(files), _FILES_PER_STEP):
        group = files[first : first + _FILES_PER_STEP]
        encoded = tokenizer.encode_batch_fast([file.text for file in group])
        parts += [np.array([*one.ids, end], dtype=np.uint16) for one in encoded]
        tick(sum(len(file.text) for file in group))
    stream = np.concatenate(parts)
    count = len(stream) // length
    ends = np.cumsum([len(part) for part in parts])
    owners = np.searchsorted(ends, np.arange(count) * length, side="right")
    return Rows(stream[: count * length].reshape(count, length), [files[owner].path for owner in owners])
