"""Tokenizing blocks of text, in one process, many, or tasks of a Ray cluster, in order."""

from __future__ import annotations

import contextlib
import os
from array import array
from collections.abc import Generator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import numpy as np

from stoker.concurrency.processes import TaskProcesses
from stoker.concurrency.ray_tasks import on_ray
from stoker.display import nearest
from stoker.errors import ConfigError, ObjectNotFoundError, StokerError, import_option
from stoker.policy import processor_count
from stoker.storage.files.regular import read_regular
from stoker.tokens.tokenize.texts import TextBlock, Texts
from stoker.types import Array, Engine, Ids

# What tokenizers call the token that ends a document.
_EOS_NAMES: Final = (
    "<|endoftext|>",
    "<|end_of_text|>",
    "</s>",
    "<eos>",
    "<|eos|>",
    "[EOS]",
    "<|endoffile|>",
    "<\uff5cend\u2581of\u2581sentence\uff5c>",
    "<|im_end|>",
)
_AHEAD = 3


@dataclass(frozen=True, slots=True)
class EncodingJob:
    """Settings of a tokenizing process: the tokenizer's JSON, and how to use it."""

    tokenizer: str
    special: bool
    parsed: bool
    eos_id: int | None
    dtype: str


@dataclass(frozen=True, slots=True)
class Tokens:
    values: Array
    lengths: Ids


class _Encoder:
    """Tokenizes blocks."""

    def __init__(self, job: EncodingJob) -> None:
        self._job = job
        self._tokenizer = _load(job.tokenizer)
        self._tokenizer.encode_special_tokens = not job.parsed  # so what looks like one in a text is text

    def __call__(self, block: TextBlock) -> Tokens:
        job = self._job
        texts = [text or "" for text in block.documents()]
        found = self._tokenizer.encode_batch_fast(texts, add_special_tokens=job.special)
        added = job.special or job.eos_id is not None
        # Ids come as lists, which an array takes several times as fast as NumPy does.
        values: array[int] = array("I")
        lengths: list[int] = []
        for text, one in zip(texts, found, strict=True):
            before = len(values)
            if text or not added:  # what has no token of its own stays empty, to be left out
                values.fromlist(one.ids)
                if job.eos_id is not None:
                    values.append(job.eos_id)
            lengths.append(len(values) - before)
        return Tokens(np.array(values, dtype=job.dtype), np.array(lengths, dtype=np.int64))


_encoder: tuple[EncodingJob, _Encoder] | None = None


def _encode(job: EncodingJob, block: TextBlock) -> Tokens:
    """In a process of its own: load the tokenizer, which then works on one thread, and keep it."""
    global _encoder
    if _encoder is None or _encoder[0] != job:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        _encoder = job, _Encoder(job)
    return _encoder[1](block)


def tokenized(
    texts: Texts, job: EncodingJob, engine: Engine, processes: int | None, skip: int
) -> Generator[tuple[TextBlock, Tokens | None]]:
    """Blocks and their tokens, in order; no tokens for the ``skip`` first."""
    blocks = texts.blocks()
    for block in islice(blocks, skip):
        yield block, None
    if engine == "ray":
        running = on_ray(_encode, job, blocks, processes, in_order=True)
    elif processes == 1:
        encoder = _Encoder(job)
        running = ((block, encoder(block)) for block in blocks)
    else:
        workers: TaskProcesses[EncodingJob, TextBlock, Tokens] = TaskProcesses(
            _encode,
            processes or processor_count(),
            does="tokenizes",
            call="tokenize()",
            remedy="Use fewer processes",
        )
        running = workers.run(job, blocks, ahead=_AHEAD)
    with contextlib.closing(running):
        yield from running


def _load(text: str) -> Any:
    tokenizers = import_option("tokenizers", "tokenizing needs tokenizers", "stoker[tokenize]")
    tokenizer = tokenizers.Tokenizer.from_str(text)
    # Settings of a model's own, which would cut and fill documents.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def make_job(
    path: str | os.PathLike[str], append_eos: bool | str | int, special: bool, parsed: bool
) -> tuple[EncodingJob, int]:
    """The job, and one more than the largest id."""
    try:
        text = read_regular(path).decode("utf-8")
    except StokerError:
        raise
    except FileNotFoundError:
        raise ObjectNotFoundError(
            f"{os.fspath(path)} does not exist: give a tokenizer.json", url=os.fspath(path)
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{os.fspath(path)} can not be read as a tokenizer ({error})") from error
    try:
        tokenizer = _load(text)
    except StokerError:
        raise
    except Exception as error:  # tokenizers raises a bare Exception
        raise ConfigError(
            f"{os.fspath(path)} is not a tokenizer of Hugging Face's tokenizers ({error}): give a tokenizer.json"
        ) from error
    vocabulary: dict[str, int] = tokenizer.get_vocab(with_added_tokens=True)
    if not vocabulary:
        raise ConfigError(f"{os.fspath(path)} is a tokenizer without a vocabulary: give one that was trained")
    vocab_size = max(vocabulary.values()) + 1
    eos_id = _eos(append_eos, vocabulary, vocab_size)
    return EncodingJob(text, special, parsed, eos_id, "uint16" if vocab_size <= 1 << 16 else "uint32"), vocab_size


def _eos(append: bool | str | int, vocabulary: dict[str, int], vocab_size: int) -> int | None:
    if append is False:
        return None
    if append is True:
        found = [name for name in _EOS_NAMES if name in vocabulary]
        if len(found) != 1:
            have = ", ".join(found) or "none of the usual names"
            raise ConfigError(f"append_eos: the tokenizer has {have}: say which token ends a document, like '</s>'")
        return vocabulary[found[0]]
    if isinstance(append, str):
        if append not in vocabulary:
            raise ConfigError(
                f"append_eos={append!r}: the tokenizer has no such token{nearest(append, vocabulary)}; give its text, its "
                "id, or True for a token with one of the usual names"
            )
        return vocabulary[append]
    if not 0 <= append < vocab_size:
        raise ConfigError(f"append_eos={append}: the tokenizer has ids in [0, {vocab_size})")
    return append
