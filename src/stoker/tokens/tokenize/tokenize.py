"""Text to tokens: files in, Parquet or MDS out; blocks of text in one process, many, or tasks of a Ray cluster, in order."""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from array import array
from collections.abc import Generator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any, Final, Literal, TypeAlias

import numpy as np

from stoker.arguments import at_least, checked, must_be
from stoker.concurrency.processes import TaskProcesses
from stoker.concurrency.ray_tasks import on_ray
from stoker.display import nearest
from stoker.errors import ConfigError, ObjectNotFoundError, StokerError, import_option
from stoker.formats.parquet.facts import DOCUMENT_LENGTHS
from stoker.policy import processor_count
from stoker.storage import is_local, open_store
from stoker.storage.files.regular import read_regular
from stoker.storage.job_record import JobRecord, check_unchanged, digest, stable_versions
from stoker.tokens.sources.ragged import Ragged
from stoker.tokens.tokenize.sinks import (
    RowPacker,
    TokenColumn,
    TokenFileWriter,
    TokenShardWriter,
    TokenSink,
    finished_before,
)
from stoker.tokens.tokenize.texts import TextBlock, Texts, find_texts
from stoker.types import Engine, StorageOptions
from stoker.units import parse_count
from stoker.writing.base import WriterOptions
from stoker.writing.progress import ProgressBar

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


Tokens: TypeAlias = tuple[Ragged, int]
"""The documents of a block that have tokens, and the number of those without."""


@lru_cache(maxsize=1)
def _kept(job: EncodingJob) -> Any:
    """The tokenizer, in a process of its own, where it works on one thread."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    return _load(job.tokenizer)


def _encode_there(job: EncodingJob, block: TextBlock) -> Tokens:
    return _encode(_kept(job), job, block)


def _encode(tokenizer: Any, job: EncodingJob, block: TextBlock) -> Tokens:
    """Tokenize a block."""
    tokenizer.encode_special_tokens = not job.parsed  # so what looks like one in a text is text
    texts = [text or "" for text in block.documents()]
    found = tokenizer.encode_batch_fast(texts, add_special_tokens=job.special)
    added = job.special or job.eos_id is not None
    # Ids come as lists, which an array takes several times as fast as NumPy does.
    values: array[int] = array("I")
    ends = [0]
    for text, one in zip(texts, found, strict=True):
        if text or not added:  # what has no token of its own stays empty, to be left out
            values.fromlist(one.ids)
            if job.eos_id is not None:
                values.append(job.eos_id)
        ends.append(len(values))
    offsets = np.unique(np.array(ends, dtype=np.int64))
    return Ragged(np.array(values, dtype=job.dtype), offsets), len(ends) - offsets.size


def tokenized(
    texts: Texts, job: EncodingJob, engine: Engine, processes: int | None, skip: int
) -> Generator[tuple[TextBlock, Tokens | None]]:
    """Blocks and their tokens, in order; no tokens for the ``skip`` first."""
    blocks = texts.blocks()
    for block in islice(blocks, skip):
        yield block, None
    if engine == "ray":
        running = on_ray(_encode_there, job, blocks, processes, in_order=True)
    elif processes == 1:
        tokenizer = _load(job.tokenizer)
        running = ((block, _encode(tokenizer, job, block)) for block in blocks)
    else:
        workers: TaskProcesses[EncodingJob, TextBlock, Tokens] = TaskProcesses(
            _encode_there,
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
            f"the tokenizer {os.fspath(path)} does not exist: pass the path of a tokenizer.json", url=os.fspath(path)
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{os.fspath(path)} can not be read as a tokenizer ({error})") from error
    try:
        tokenizer = _load(text)
    except StokerError:
        raise
    except Exception as error:  # tokenizers raises a bare Exception
        raise ConfigError(
            f"{os.fspath(path)} is not a tokenizer of Hugging Face's tokenizers ({error}): pass the path of a tokenizer.json"
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


OutputFormat = Literal["parquet", "mds"]

_COUNTS: Final = ("documents", "tokens")


@dataclass(frozen=True, slots=True)
class TokenizeReport:
    """The result of a tokenization.

    Attributes:
        documents: written.
        empty: documents left out, as they had no token.
        tokens: written, those of eos included.
        files: written: Parquet files or shards.
        dtype: of the tokens, ``"uint16"`` or ``"uint32"``.
        vocab_size: one more than the tokenizer's largest id.
        eos_id: the token put behind each document, or ``None``.
        seconds: it took.
        resumed: blocks of text that a run before had done; their documents, tokens and rows are not counted here.
        rows: written, where documents were packed; ``None`` where each document is a row.
    """

    documents: int
    empty: int
    tokens: int
    files: int
    dtype: str
    vocab_size: int
    eos_id: int | None
    seconds: float
    resumed: int
    rows: int | None = None


@checked
def tokenize(
    src: str | os.PathLike[str],
    dst: str | os.PathLike[str],
    tokenizer: str | os.PathLike[str],
    *,
    format: OutputFormat = "parquet",  # noqa: A002
    column: str | None = None,
    append_eos: bool | str | int = False,
    add_special_tokens: bool = False,
    parse_special_tokens: bool = False,
    pack: int | None = None,
    processes: int | None = None,
    engine: Engine = "local",
    output_column: str = "input_ids",
    compression: str | None = "zstd",
    row_group_tokens: int | str = 1 << 23,
    file_tokens: int | str = 1 << 28,
    strict: bool = True,
    resume: bool = False,
    exist_ok: bool = False,
    storage_options: StorageOptions | None = None,
    progress_bar: bool = False,
) -> TokenizeReport:
    """Tokenize all documents of text files into token files, in order.

    The output is the same for any number of processes. Memory is bounded by a few MiB of text a process, and a row group.
    Processes are spawned, so a script that calls this needs ``if __name__ == "__main__"``. A run that is killed leaves
    nothing that looks like a dataset.

    Args:
        src: a file, a directory or a glob; Parquet, JSON lines (``.jsonl``, ``.ndjson``, ``.json``, packed with gzip or
            not), or plain text, a document a file. Of a directory, its Parquet files or its JSON lines are taken; without
            any, its ``.json`` or its plain text (``.txt``, ``.text``, ``.md``). Other plain text is named by a glob.
        dst: a directory or a URL.
        tokenizer: ``tokenizer.json`` as Hugging Face's ``tokenizers`` save it. Cutting and padding, if it says so, are
            turned off.
        format: ``"parquet"`` or ``"mds"``.
        column: column or key of the text; default ``text``, ``content``, or the only one of text.
        append_eos: append a token to each document: its text, its id, or True for the tokenizer's end-of-text token with one
            of the usual names. Loaders can add it instead (``eos_id=``): do not use both.
        add_special_tokens: add what the tokenizer's template adds, such as a token that begins a document.
        parse_special_tokens: take what a text has of special tokens, such as ``<|endoftext|>``, for these; otherwise it is
            text like any other, as others wrote it.
        pack: put several documents into each row of at most so many tokens, by best fit, as a loader with ``layout="pack"``
            would; only longer documents are cut into pieces. A second column, ``seq_lengths``, has the tokens of each
            document in a row. Rows are not padded.
        processes: default one a processor; 1 works in this process. With Ray: most blocks of text at once.
        engine: ``"ray"`` to tokenize in the tasks of a Ray cluster. This process reads the text and writes the tokens.
        output_column: name of the tokens' column.
        compression: ``"zstd"``, ...; ``None`` is the fastest to read from a local disk.
        row_group_tokens: tokens in a Parquet row group, as a number or like ``"8m"``.
        file_tokens: tokens in a Parquet file.
        strict: plain text that is not UTF-8 is an error; otherwise its bytes are replaced.
        resume: continue what a killed run over the same files with the same settings left; if it had finished, nothing is
            left to do.
        exist_ok: replace the tokens that are there.
        storage_options: credentials and settings of a remote ``dst``, by obstore's names.
        progress_bar: show on the terminal how far it is.

    Raises:
        ConfigError: an argument makes no sense, or there is something at ``dst``.
        SourceChangedError: files of text were changed since the run that is resumed, or while they were read; names
            them.
        StorageError: ``dst`` can not be written, or a file can not be read.
        FormatError: a file is not what it should be; names file, row and remedy.
        MissingPackageError: ``tokenizers``, or Ray for ``engine="ray"``, is not installed.
    """
    began = time.monotonic()
    row_group_tokens = parse_count(row_group_tokens, "row_group_tokens")
    file_tokens = parse_count(file_tokens, "file_tokens")
    at_least(1, pack=pack, processes=processes, row_group_tokens=row_group_tokens, file_tokens=file_tokens)
    if not output_column or column == "":
        raise ConfigError(f"column={column!r}, output_column={output_column!r}: a column's name must not be empty")
    taken = pack is not None and output_column == DOCUMENT_LENGTHS
    must_be("another name than that of the documents' lengths", not taken, output_column=output_column)
    job, vocab_size = make_job(tokenizer, append_eos, add_special_tokens, parse_special_tokens)
    texts = find_texts(src, column=column, strict=strict)
    about = {
        "vocab_size": vocab_size,
        "eos_id": job.eos_id,
        "tokenizer_sha256": hashlib.sha256(job.tokenizer.encode()).hexdigest(),
        "special_tokens": add_special_tokens,
        "parsed_special_tokens": parse_special_tokens,
        **({} if pack is None else {"packed": pack}),
    }
    dtype = np.dtype(job.dtype)
    record = _record(
        texts,
        {
            **about,
            "format": format,
            "output_column": output_column,
            "compression": compression,
            "row_group_tokens": row_group_tokens,
            "file_tokens": file_tokens,
        },
    )
    store = open_store(dst, storage_options if is_local(dst) is None else None)

    def report(documents: int, empty: int, tokens: int, files: int, resumed: int, rows: int = 0) -> TokenizeReport:
        counts = documents, empty, tokens, files
        seconds, packed = time.monotonic() - began, None if pack is None else rows
        return TokenizeReport(*counts, dtype.name, vocab_size, job.eos_id, seconds, resumed, packed)

    before = finished_before(store, record, resume=resume, exist_ok=exist_ok)
    if before is not None:
        return report(0, 0, 0, *before)
    written = TokenColumn(output_column, dtype, compression, row_group_tokens, file_tokens, about, pack is not None)
    options: WriterOptions = {"resume": resume, "exist_ok": exist_ok}
    if is_local(dst) is None:
        options["storage_options"] = storage_options
    documents = empty = tokens = 0
    with TokenSink(store, TokenShardWriter if format == "mds" else TokenFileWriter, written, record, options) as sink:
        packer = None if pack is None else RowPacker(pack, sink.writer.write_block)
        write = sink.writer.write_block if packer is None else packer.add
        with ExitStack() as stack:
            show = None
            if progress_bar:
                bar = ProgressBar("tokenizing", max(texts.size, 1), "bytes", counts=_COUNTS, rate_of="tokens")
                show = stack.enter_context(bar)
            found = stack.enter_context(closing(tokenized(texts, job, engine, processes, sink.resumed)))
            for block, done in found:
                counts = (0, 0)
                if done is not None:
                    full, left_out = done
                    write(full)
                    empty += left_out
                    counts = (len(full), full.values.size)
                    documents, tokens = documents + counts[0], tokens + counts[1]
                if show is not None:
                    show.advance(block.size, **dict(zip(_COUNTS, counts, strict=True)))
        if packer is not None:
            packer.end_window()
        check_unchanged(
            texts.versions, texts.versions_now(), os.fspath(src), "start again without resume=True (--resume)"
        )
    return report(documents, empty, tokens, sink.writer.files, sink.resumed, 0 if packer is None else packer.rows)


def _record(texts: Texts, settings: dict[str, Any]) -> JobRecord:
    """The job: everything that the output depends on."""
    files = stable_versions(texts.versions)
    about = {**settings, "files": files, "kind": texts.kind, "column": texts.column, "strict": texts.strict}
    return JobRecord(digest(about), about)
