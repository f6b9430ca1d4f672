"""Text to tokens: files in, Parquet or MDS out, on many processes."""

from __future__ import annotations

import hashlib
import json
import os
import time
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

import numpy as np

from stoker.arguments import checked
from stoker.errors import ConfigError
from stoker.storage import is_local, open_store
from stoker.storage.job_record import JobRecord, check_unchanged, stable_versions
from stoker.tokens.sources.ragged import Ragged
from stoker.tokens.tokenize.encoding import make_job, tokenized
from stoker.tokens.tokenize.sinks import MDSSink, ParquetSink, TokenColumn, finished_before
from stoker.tokens.tokenize.texts import Texts, find_texts
from stoker.types import Engine, StorageOptions
from stoker.units import parse_count
from stoker.writing.base import WriterOptions
from stoker.writing.progress import ProgressBar

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
        resumed: blocks of text that a run before had done; their documents and tokens are not counted here.
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
    """Tokenize all documents of some files, in order.

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
        append_eos: put a token behind each document: its text, its id, or True for the one that the tokenizer has of the
            usual names. Batches can be given eos later, too: do not do both.
        add_special_tokens: add what the tokenizer's template adds, such as a token that begins a document.
        parse_special_tokens: take what a text has of special tokens, such as ``<|endoftext|>``, for these; otherwise it is
            text like any other, as others wrote it.
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
    if format not in get_args(OutputFormat):
        raise ConfigError(f"format={format!r} is unknown; known: {', '.join(get_args(OutputFormat))}")
    row_group_tokens, file_tokens = parse_count(row_group_tokens), parse_count(file_tokens)
    if (processes is not None and processes < 1) or row_group_tokens < 1 or file_tokens < 1:
        raise ConfigError(
            f"processes={processes}, row_group_tokens={row_group_tokens}, file_tokens={file_tokens}: at least 1"
        )
    if not output_column or column == "":
        raise ConfigError(f"column={column!r}, output_column={output_column!r}: a column's name must not be empty")
    job, vocab_size = make_job(tokenizer, append_eos, add_special_tokens, parse_special_tokens)
    texts = find_texts(src, column=column, strict=strict)
    about = {
        "vocab_size": vocab_size,
        "eos_id": job.eos_id,
        "tokenizer_sha256": hashlib.sha256(job.tokenizer.encode()).hexdigest(),
        "special_tokens": add_special_tokens,
        "parsed_special_tokens": parse_special_tokens,
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
    before = finished_before(store, record, resume=resume, exist_ok=exist_ok)
    if before is not None:
        seconds = time.monotonic() - began
        return TokenizeReport(0, 0, 0, before[0], dtype.name, vocab_size, job.eos_id, seconds, before[1])
    written = TokenColumn(output_column, dtype, compression, row_group_tokens, file_tokens, about)
    options: WriterOptions = {"resume": resume, "exist_ok": exist_ok}
    if is_local(dst) is None:
        options["storage_options"] = storage_options
    sink = (MDSSink if format == "mds" else ParquetSink)(store, written, record, options)
    resumed = sink.blocks
    documents = empty = tokens = 0
    try:
        with ExitStack() as stack:
            show = None
            if progress_bar:
                bar = ProgressBar("tokenizing", max(texts.size, 1), "bytes", counts=_COUNTS, rate_of="tokens")
                show = stack.enter_context(bar)
            found = stack.enter_context(closing(tokenized(texts, job, engine, processes, resumed)))
            for block, done in found:
                counts = (0, 0)
                if done is not None:
                    lengths = done.lengths
                    full = lengths[lengths > 0]
                    sink.write(Ragged(done.values, np.concatenate([[0], np.cumsum(full)]).astype(np.int64)))
                    empty += lengths.size - full.size
                    counts = (full.size, done.values.size)
                    documents, tokens = documents + counts[0], tokens + counts[1]
                if show is not None:
                    show.advance(block.size, **dict(zip(_COUNTS, counts, strict=True)))
            check_unchanged(
                texts.versions, texts.versions_now(), os.fspath(src), "start again without resume=True (--resume)"
            )
            sink.finish()
    except BaseException:
        sink.abort()
        raise
    return TokenizeReport(
        documents,
        empty,
        tokens,
        sink.files,
        dtype.name,
        vocab_size,
        job.eos_id,
        time.monotonic() - began,
        resumed,
    )


def _record(texts: Texts, settings: dict[str, Any]) -> JobRecord:
    """The job: everything that the output depends on."""
    files = stable_versions(texts.versions)
    about = {**settings, "files": files, "kind": texts.kind, "column": texts.column, "strict": texts.strict}
    return JobRecord(hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest(), about)
