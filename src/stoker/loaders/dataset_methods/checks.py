"""Checks of a dataset's arguments against its data, and remedies for arguments and methods that other libraries have."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from stoker.display import unknown_name
from stoker.errors import ConfigError
from stoker.index.concat_index import ConcatIndex
from stoker.index.index import Index
from stoker.order.capabilities import shards_at_once
from stoker.order.sample_order import SampleOrder
from stoker.pipeline.chunks.by_shard import expected_fetches
from stoker.pipeline.transforms import EpochReaderSettings
from stoker.units import parse_count

logger = logging.getLogger(__name__)

_DIVIDED: Final = "leave it out: samples are divided among ranks and workers"

OTHER_ARGUMENTS: Final[Mapping[str, str]] = {
    # litdata
    "max_cache_size": "it is cache_limit=",
    "drop_last": 'it is remainder="drop"',
    "seed": "it is shuffle_seed=",
    "input_dir": "it is remote=",
    "item_loader": 'samples of token chunks are format="litdata", format_options={"block_size": ...}',
    "subsample": "it is subset=HashSplit(0, share)",
    # Hugging Face's datasets
    "path": "it is remote=",
    "data_files": "it is remote=, which takes a pattern or a list, too",
    "data_dir": "it is the folder in remote=",
    "revision": "it is in the URL, hf://datasets/owner/name@revision",
    "token": 'it is storage_options={"token": ...}',
    "download_config": "credentials are in storage_options=",
    "keep_in_memory": 'it is cache="memory"',
    "num_proc": "it is of a StreamingDataLoader, num_workers=; for functions, read=ReadOptions(run_in='processes')",
    "streaming": "leave it out: data is always streamed",
    "buffer_size": "leave it out: shuffle=True shuffles the whole dataset",
    # webdataset
    "urls": "it is remote=",
    "shardshuffle": "it is shuffle=True",
    "resampled": "it is epoch_size=, or repeat= of a Stream",
    "handler": 'it is on_bad_sample="skip" or "replace"',
    "nodesplitter": _DIVIDED,
    "workersplitter": _DIVIDED,
    "cache_dir": "it is local=",
    # torch, torchdata, Grain and tf.data
    "num_workers": "it is of a StreamingDataLoader over the dataset",
    "worker_count": "it is num_workers= of a StreamingDataLoader over the dataset",
    **dict.fromkeys(
        ("collate_fn", "pin_memory", "persistent_workers", "prefetch_factor"),
        "it is of a StreamingDataLoader over the dataset",
    ),
    **dict.fromkeys(
        ("sampler", "batch_sampler"), "leave it out: shuffle=, subset= and streams= say which samples come"
    ),
    **dict.fromkeys(("rank", "world_size", "num_replicas", "shard_options"), "it is world=World(rank, world_size)"),
    **dict.fromkeys(("num_epochs", "repeat"), "leave it out: each iteration is an epoch; of a Stream, repeat="),
    "drop_remainder": 'it is remainder="drop"',
    **dict.fromkeys(("operations", "transforms", "map_fn"), "it is transform=, or map() of the dataset"),
    **dict.fromkeys(("prefetch", "prefetch_size", "read_ahead"), "it is predownload=, in samples"),
    "cache_size": "it is cache_limit=",
}
"""Names that other libraries give to arguments, and the argument to write here."""

_MAP: Final = "use map()"
_SELECT: Final = "use select(), or give columns= to the constructor"
_BATCHES: Final = "give batch_size= to the constructor, and iterate batches()"
_STREAMS: Final = "give streams=[Stream(...), ...] to the constructor"
_MIXED: Final = f"{_STREAMS}, with proportion= of each"
_EPOCH: Final = "each iteration is an epoch"
_AHEAD: Final = "leave it out: samples are read ahead; predownload= of the constructor says how far"
_DATA: Final = "stoker.inspect(url) describes a dataset; len() counts"
_WRITE: Final = "write it by stoker.convert(), or a writer of stoker.writers"
_METHODS: Final[Mapping[str, str]] = {
    # Functions of samples and batches
    **dict.fromkeys(("map_dict", "map_tuple", "to_tuple", "set_transform", "apply", "compose", "map_with_index"), _MAP),
    "with_transform": _MAP,
    **dict.fromkeys(("map_batches", "map_batch"), "use batch_map()"),
    "random_map_with_index": "use random_map()",
    **dict.fromkeys(("explode", "unbatch", "unbatched"), "use flat_map()"),
    "enumerate_samples": "use enumerate()",
    "decode": "give transform= to the constructor; of tars, "
    'format_options={"encodings": {"jpg": "jpeg"}} decodes images',
    # Columns
    **dict.fromkeys(("rename_column", "rename_columns", "rename_keys"), "use rename()"),
    **dict.fromkeys(("select_columns", "remove_columns", "drop_columns", "extract_keys"), _SELECT),
    **dict.fromkeys(
        ("cast", "cast_column", "class_encode_column", "flatten"),
        "use map() to change values; stoker.convert(columns=) writes other types",
    ),
    "add_column": "write it as a dataset of its own, and use zip() or join()",
    # Which samples, and in which order
    "take": "give subset=KeepIds(range(n)) to the constructor",
    "limit": "give subset=KeepIds(range(n)) to the constructor",
    **dict.fromkeys(("skip", "drop"), "give subset=SkipIds(range(n)) to the constructor"),
    "slice": "give subset=KeepIds(range(begin, end)) to the constructor",
    **dict.fromkeys(
        ("sort", "order_by", "sort_by"),
        "samples come as they are stored, or with shuffle=True of the constructor shuffled: sort before writing",
    ),
    **dict.fromkeys(
        ("seed", "random_shuffle", "shuffle_buffer"), "give shuffle=True, shuffle_seed= to the constructor"
    ),
    **dict.fromkeys(("repeat", "cycle"), _EPOCH),
    "with_epoch": "give epoch_size= to the constructor",
    **dict.fromkeys(("shard", "sharding_filter", "split_by_node", "split_by_worker"), _DIVIDED),
    "train_test_split": "give subset=, of train_validation_split(), to the constructor",
    # Several datasets
    **dict.fromkeys(("concatenate", "concat", "concatenate_datasets", "chain_datasets", "union"), _STREAMS),
    **dict.fromkeys(("mix", "interleave", "interleave_datasets", "sample_from_datasets"), _MIXED),
    # Batches
    **dict.fromkeys(("batch", "batched", "iter", "iter_batches", "padded_batch", "ragged_batch", "collate"), _BATCHES),
    **dict.fromkeys(
        ("with_format", "set_format", "iter_torch_batches", "as_numpy_iterator", "to_tf_dataset"),
        "batches() has NumPy arrays, and StreamingDataLoader tensors",
    ),
    **dict.fromkeys(("to_iter_dataset", "to_map_dataset", "to_iterable_dataset", "pipe"), "iterate over it as it is"),
    **dict.fromkeys(("prefetch", "mp_prefetch", "prefetcher", "set_prefetch"), _AHEAD),
    **dict.fromkeys(("cache", "persist", "materialize", "snapshot"), "shards are cached by themselves, below local="),
    # The data itself
    **dict.fromkeys(("features", "column_names", "num_rows", "info", "schema", "shape"), _DATA),
    "unique": "stoker.inspect(url) describes a dataset; read() gives a column",
    **dict.fromkeys(("save_to_disk", "push_to_hub", "to_parquet", "to_json", "to_csv", "write_parquet"), _WRITE),
    **dict.fromkeys(("to_pandas", "to_dict", "to_list", "to_arrow"), "read(ids) gives samples as columns"),
}
"""Names of methods and attributes of other libraries' datasets, and what to write here."""

_PROCESSES: Final = "functions run in threads; ReadOptions(run_in='processes', read_processes=...) is for processes"
OTHER_OF_MAP: Final[Mapping[str, str]] = {
    "batched": "use batch_map()",
    "batch_size": f"use batch_map(); {_BATCHES}",
    "drop_last_batch": 'give remainder="drop" to the constructor',
    **dict.fromkeys(("num_proc", "num_parallel_calls", "concurrency", "num_workers"), _PROCESSES),
    "with_indices": 'use enumerate("position") before it, which adds a column',
    "with_rank": "rank and world size are in dataset.world",
    "remove_columns": "use select() after it",
    "input_columns": "the function gets the sample, a dict",
    **dict.fromkeys(("fn_kwargs", "fn_args"), "bind arguments by functools.partial"),
    **dict.fromkeys(
        ("load_from_cache_file", "cache_file_name", "writer_batch_size", "new_fingerprint", "keep_in_memory"),
        "leave it out: nothing is cached of a function; stoker.convert() writes what it makes",
    ),
    "features": "leave it out: the types are those of what the function returns",
    "desc": "it is name=",
    "seed": "random numbers are those of shuffle_seed= of the constructor",
    "fn": "it is function=, the first argument",
}
"""Names that other libraries give to arguments of ``map``, ``filter`` and the like, and what to write here."""


def check_sizes(batch_size: int | None, predownload: int | None, epoch_size: int | str | None) -> int | None:
    """Check numbers of samples.

    Args:
        batch_size, predownload, epoch_size: arguments of the dataset.

    Returns:
        Samples in an epoch; ``None``: all.

    Raises:
        ConfigError: one is too small. Batches that wait for their shards are a warning.
    """
    for name, value, least in (("batch_size", batch_size, 1), ("predownload", predownload, 0)):
        if value is not None and value < least:
            raise ConfigError(f"{name} must be at least {least}, got {value}")
    length = None if epoch_size is None else parse_count(epoch_size)
    if length == 0:
        raise ConfigError(f"epoch_size must be at least 1 sample, got {epoch_size!r}")
    if predownload is not None and batch_size is not None and predownload < batch_size:
        warnings.warn(
            f"predownload={predownload} is less than batch_size={batch_size}: each batch waits for its shards. Leave "
            "predownload out, or give at least the batch size",
            stacklevel=4,
        )
    return length


def check_beside(method: str, overridden: Sequence[str], order: Mapping[str, Any], *, quarantine: bool) -> None:
    """See that all samples of a dataset can come beside those of another.

    Args:
        method: ``"zip"`` or ``"join"``.
        overridden: methods that make samples which its class overrides.
        order: of the dataset, as states hold it.
        quarantine: whether it leaves out samples of a list.

    Raises:
        ConfigError: a subclass makes its samples, or some are left out.
    """
    if overridden:
        raise ConfigError(
            f"{method}() would read past {overridden[0]}() of the other dataset's class, which makes its samples: let a "
            "function of a sample do it, StreamingDataset(transform=...)"
        )
    subset = any("subset" in stream for stream in order["streams"].values())
    if subset or quarantine:
        raise ConfigError(
            f"{method}() takes samples of all of the other dataset, which has {'subset' if subset else 'quarantine'}=: leave "
            "it out there, and choose samples of this one"
        )


def check_columns(columns: Sequence[str] | None, known: Collection[str]) -> None:
    """Check the names of the columns that are to be read.

    Raises:
        ConfigError: there is none, or one that the dataset does not have.
    """
    if columns is not None and not columns:
        raise ConfigError("columns is empty: name at least one, or leave it out for all")
    unknown = set(columns or ()) - set(known)
    if unknown:
        raise ConfigError(f"columns: {unknown_name('column', min(unknown), known)}")


def check_ids(ids: str | None, known: Collection[str]) -> None:
    """Check the name of the column of ids.

    Raises:
        ConfigError: it is empty, or another column has it.
    """
    if ids is not None and (not ids or ids in known):
        raise ConfigError(
            f"ids={ids!r} names a column beside those of the dataset, {', '.join(map(str, known))}: choose another name"
        )


def check_limit(
    limit: int | None, index: Index | ConcatIndex, sample_order: SampleOrder, group_bytes: int | None
) -> None:
    """Check that a cache of ``limit`` bytes can hold a shard; one that can not hold those read at once is logged.

    Args:
        limit: of the cache; ``None`` for none.
        index: the shards.
        sample_order: which sample comes when.
        group_bytes: bytes of samples that are read together where the limit is too small; ``None``: none are.

    Raises:
        ConfigError: it can not.
    """
    if limit is None:
        return
    if limit < index.largest_shard:
        raise ConfigError(f"cache_limit={limit} can not hold one shard; the largest has {index.largest_shard} bytes")
    shards = max(1, len(index))
    needed = min(shards_at_once(sample_order), shards) * (index.total_bytes // shards)
    if needed <= limit:
        return
    if group_bytes is None:
        fetches, why = float(index.samples), "with views=True each sample may fetch its shard anew"
    else:
        fetches = expected_fetches(index.samples, shards, index.total_bytes // max(1, index.samples), group_bytes)
        why = f"samples of {_megabytes(group_bytes)} are read together, shard by shard"
    logger.warning(
        "cache_limit=%d (%s) is less than the %s of shards that this order reads at once: an epoch fetches up to %s, %.1f "
        "times the dataset's, and more with several processes a node, as %s. Raise cache_limit, or lower "
        "shuffle_block_size or num_canonical_nodes, or choose another shuffle_algo",
        limit,
        _megabytes(limit),
        _megabytes(needed),
        _megabytes(fetches * (index.total_bytes // shards)),
        fetches / shards,
        why,
    )


def _megabytes(size: float) -> str:
    return f"{size / (1 << 20):,.2f} MB"


def no_attribute(owner: object, name: str) -> AttributeError:
    """The error for an attribute that a dataset lacks; of those that others have, it says what to write.

    Args:
        owner: the dataset.
        name: of the attribute.
    """
    meant = f": {_METHODS[name]}" if name in _METHODS else ""
    told: dict[str, Any] = {"name": name, "obj": owner}
    return AttributeError(f"{type(owner).__name__!r} object has no attribute {name!r}{meant}", **told)


def whole_batches_by(settings: EpochReaderSettings) -> str:
    """The remedy where a setting makes batches shorter or longer, for messages."""
    instead = settings.instead_of_leaving_out.removesuffix(", ")
    return f"use {instead}" if instead else "leave it out"
