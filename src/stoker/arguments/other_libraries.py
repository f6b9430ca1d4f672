"""Names and operators of other libraries: what is not here is an error that says what to write instead."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final, NoReturn

from stoker.display import with_article
from stoker.errors import ConfigError
from stoker.lazy import cached_property

__all__ = [
    "METHODS",
    "OTHER_ARGUMENTS",
    "OTHER_OF_MAP",
    "SHUFFLE",
    "STATES",
    "TOKEN_ARGUMENTS",
    "TOKEN_METHODS",
    "OtherLibraries",
]

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

SHUFFLE: Final = "give shuffle=True, shuffle_seed= to the constructor"
"""The remedy for a call of ``shuffle()``: a dataset has a property of that name."""

_MAP: Final = "use map()"
_SELECT: Final = "use select(), or give columns= to the constructor"
_BATCHES: Final = "give batch_size= to the constructor, and iterate batches()"
_STREAMS: Final = "give streams=[Stream(...), ...] to the constructor"
_MIXED: Final = f"{_STREAMS}, with proportion= of each"
_EPOCH: Final = "each iteration is an epoch"
_AHEAD: Final = "leave it out: samples are read ahead; predownload= of the constructor says how far"
_SHARDS: Final = ("shard", "sharding_filter", "split_by_node", "split_by_worker", "streaming_split")
_FACTS: Final = ("features", "column_names", "num_rows", "info", "schema", "shape", "count")
_DATA: Final = "stoker.inspect(url) describes a dataset; len() counts"
_WRITE: Final = "write it by stoker.convert(), or a writer of stoker.writers"
STATES: Final[Mapping[str, str]] = dict.fromkeys(
    ("get_state", "set_state"), "state_dict() is the state of a loader, and load_state_dict() resumes from it"
)
"""Of all loaders, whatever they are made over."""

METHODS: Final[Mapping[str, str]] = {
    **STATES,
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
    **dict.fromkeys(("seed", "random_shuffle", "shuffle_buffer"), SHUFFLE),
    **dict.fromkeys(("repeat", "cycle"), _EPOCH),
    "with_epoch": "give epoch_size= to the constructor",
    **dict.fromkeys(_SHARDS, _DIVIDED),
    **dict.fromkeys(
        ("train_test_split", "random_split"), "give subset=, of train_validation_split(), to the constructor"
    ),
    # Several datasets
    **dict.fromkeys(("concatenate", "concat", "concatenate_datasets", "chain_datasets", "union"), _STREAMS),
    **dict.fromkeys(("mix", "interleave", "interleave_datasets", "sample_from_datasets"), _MIXED),
    # Batches
    **dict.fromkeys(("batch", "batched", "iter", "iter_batches", "padded_batch", "ragged_batch", "collate"), _BATCHES),
    **dict.fromkeys(
        ("with_format", "set_format", "iter_torch_batches", "to_torch", "as_numpy_iterator", "to_tf_dataset"),
        "batches() has NumPy arrays, and StreamingDataLoader tensors",
    ),
    **dict.fromkeys(
        ("to_iter_dataset", "to_map_dataset", "to_iterable_dataset", "pipe", "iter_rows"), "iterate over it as it is"
    ),
    **dict.fromkeys(("prefetch", "mp_prefetch", "prefetcher", "set_prefetch"), _AHEAD),
    **dict.fromkeys(("cache", "persist", "materialize", "snapshot"), "shards are cached by themselves, below local="),
    # The data itself
    **dict.fromkeys(_FACTS, _DATA),
    **dict.fromkeys(
        ("show", "head", "take_batch", "take_all"), "read(ids) gives samples; stoker.inspect(url) shows some"
    ),
    "unique": "stoker.inspect(url) describes a dataset; read() gives a column",
    **dict.fromkeys(("save_to_disk", "push_to_hub", "to_parquet", "to_json", "to_csv", "write_parquet"), _WRITE),
    **dict.fromkeys(("to_pandas", "to_dict", "to_list", "to_arrow"), "read(ids) gives samples as columns"),
}
"""Names of methods and attributes of other libraries' datasets, and what to write here, of a ``StreamingDataset``."""

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


TOKEN_METHODS: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        ("shuffle", "seed", "random_shuffle", "shuffle_buffer"), "give shuffle=True, seed= to the constructor"
    ),
    **dict.fromkeys(
        ("batch", "batched", "iter", "iter_batches", "batches"), "give batch_size= to the constructor, and iterate"
    ),
    **dict.fromkeys(("repeat", "cycle"), _EPOCH),
    **dict.fromkeys(_SHARDS, _DIVIDED),
    **dict.fromkeys(
        ("prefetch", "mp_prefetch", "prefetcher", "set_prefetch"),
        "leave it out: row groups are decoded ahead; read=ReadOptions(read_threads=...) says how many at once",
    ),
    **dict.fromkeys(
        ("concatenate", "concat", "concatenate_datasets", "chain_datasets", "union"),
        "give the files of all to the constructor, in a list",
    ),
    **dict.fromkeys(
        ("with_format", "set_format", "iter_torch_batches"), 'batch.torch("input_ids", "labels") gives tensors'
    ),
    **dict.fromkeys(("to_iter_dataset", "to_map_dataset", "to_iterable_dataset", "pipe"), "iterate over it as it is"),
    **dict.fromkeys(("cache", "persist", "materialize", "snapshot"), "files are cached by themselves, below local="),
    **dict.fromkeys(_FACTS, _DATA),
    **STATES,
}
"""The same of loaders of token files."""

TOKEN_ARGUMENTS: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        ("sequence_length", "max_length", "max_seq_len", "max_seq_length", "block_size", "context_length"),
        "it is seq_len=",
    ),
    **dict.fromkeys(("remote", "urls", "path", "data_files", "input_dir"), "it is source=, the first"),
    "shuffle_seed": "it is seed=",
    **dict.fromkeys(("num_workers", "worker_count"), "it is of a StreamingDataLoader over the loader"),
    **dict.fromkeys(("rank", "world_size", "num_replicas"), "it is world=World(rank, world_size)"),
    "tokenizer": "make tokens of text by LMStream(tokenizer=) while it is read, or by tokenize() once",
    "transform": "make an LMStream over a StreamingDataset(transform=)",
}
"""Names that other libraries, or a ``StreamingDataset``, give to arguments, and what to write of loaders of token files."""


class OtherLibraries:
    """Base of a public class: a missing attribute that other libraries have is an ``AttributeError`` with the remedy."""

    __slots__ = ()

    instead_of_sum: ClassVar[str] = (
        "give streams=[Stream(...), ...] to one StreamingDataset, which mixes them in one order; for one after the other, "
        "give it the files in a list, or make one index by merge_index()"
    )
    """The remedy that the error of ``+`` names."""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            following = getattr(super(), "__getattr__", None)
            if following is not None:  # of another base of a subclass
                return following(name)
            if isinstance(getattr(type(self), name, None), property | functools.cached_property | cached_property):
                return object.__getattribute__(self, name)  # raises the property's own error again
            meant = "" if name.startswith("_") else self.meant_by(name)
            told = {"name": name, "obj": self}
            raise AttributeError(
                f"{type(self).__name__!r} object has no attribute {name!r}{meant and ': ' + meant}", **told
            )

        # torch's datasets have a sum, of which nothing knows the state.
        def __add__(self, _: object) -> NoReturn:
            raise self._no_sum()

        def __radd__(self, _: object) -> NoReturn:
            raise self._no_sum()

    def meant_by(self, name: str) -> str:
        """The remedy for an attribute that other libraries have, and this has not; empty where nothing is known."""
        return METHODS.get(name, "")

    def _no_sum(self) -> ConfigError:
        return ConfigError(
            f"{with_article(type(self).__name__)} can not be added to another with +: {self.instead_of_sum}"
        )
