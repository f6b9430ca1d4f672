"""Stoker keeps accelerators fed.

Write training data as shards, stream it to any number of nodes, ranks and workers in one deterministic order, stop and resume
anywhere. Names are imported when first used, so ``import stoker`` is quick and needs no framework.
docs/api.md has the signature of each.

Loaders, which all follow the protocol ``Loader``:
    StreamingDataset        samples, or batches of columns, of any dataset in one order
    StreamingDataLoader     torch's ``DataLoader`` over a dataset, with a state to resume from
    LocalDataset            samples of a directory by id, for torch's samplers
    StreamingShardLoader    samples of one worker, in lockstep, by a plan, or leased
    StreamingParquetLoader  batches for language models from token files
    LMStream                batches for language models from any dataset
    Loader                  iterate, ``len``, ``state_dict``, ``stats``, ``close``

Sources, samples and settings of reading:
    Stream                  one source of a dataset, with its weight and subset
    ReadOptions             threads or processes, memory, views, quarantine
    Video                   a video, decoded clip by clip
    Audio                   an audio recording, decoded whole or clip by clip
    Chain                   functions that are applied to samples, with random numbers for each sample
    Step                    base class for steps of your own
    BadSamples              handling of bad samples, limits on their number, and a file that lists them
    Where                   samples whose column meets a condition
    HashSplit               a fraction of the samples, by a hash of their ids
    KeepIds                 only the samples with these ids
    SkipIds                 all samples except those with these ids
    SkipSteps               steps of an epoch to exclude: ``ReadOptions(quarantine=)``
    train_validation_split  two fractions that share no sample
    Lengths                 batches of samples of similar length, with a bounded cost
    Schedule                weights of streams that change during training

Ranks and workers:
    World                   this process's rank and the world size
    Mesh                    ranks in named dimensions: which ones read the same samples
    StreamingConfig         settings of a ``StreamingShardLoader``
    Adaptive                workers lease parts of the epoch from a coordinator
    ShardConfig             rank, world size and seed of a ``StreamingParquetLoader``

Results and errors of loaders:
    LMBatch                 rows of tokens, with labels, masks and positions
    StreamStats             statistics of a loader
    Trace                   a recording of where the time of loading goes, for Perfetto
    StokerError             base class of all errors; see ``stoker.errors``

Writing; all writers are in ``stoker.writers``:
    open_writer             a writer of any format, by the format's name
    MDSWriter               writes samples to MDS shards, in a directory or at a URL
    merge_index             writes one index for several datasets
    rebuild_index           rebuilds the lost index of a dataset

Jobs, as on the command line:
    convert                 converts a dataset to another format, in parallel
    tokenize                converts text to token files
    inspect                 describes a dataset
    inspect_tokens          describes token data: lengths of documents, waste of layouts
    verify                  checks a dataset for damaged or missing data

Pictures are decoded by ``stoker.image``. Columns of videos and sounds are in ``stoker.media``, partitions in
``stoker.partitions``, token sources in ``stoker.tokens``, errors in ``stoker.errors``, and tests for formats, loaders and
engines of your own in ``stoker.testing``. ``generate`` and ``DatasetSpec``, for synthetic datasets, come with the package
stoker-bench: ``pip install . ./packages/stoker-bench`` in a clone of the repository.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from stoker.lazy import lazy_package, no_attribute
from stoker.version import __version__ as __version__

if TYPE_CHECKING:
    from stoker.cluster import World as World
    from stoker.cluster.mesh import Mesh as Mesh
    from stoker.conversion import convert as convert
    from stoker.errors import StokerError as StokerError
    from stoker.formats.base import ReadOptions as ReadOptions
    from stoker.formats.media.audio import Audio as Audio
    from stoker.formats.media.video import Video as Video
    from stoker.index.merge import merge_index as merge_index
    from stoker.index.shard_files import rebuild_index as rebuild_index
    from stoker.inspection import inspect as inspect
    from stoker.inspection import inspect_tokens as inspect_tokens
    from stoker.inspection import verify as verify
    from stoker.loaders.dataloader import StreamingDataLoader as StreamingDataLoader
    from stoker.loaders.dataset import StreamingDataset as StreamingDataset
    from stoker.loaders.lm_stream import LMStream as LMStream
    from stoker.loaders.local import LocalDataset as LocalDataset
    from stoker.loaders.parquet_loader import StreamingParquetLoader as StreamingParquetLoader
    from stoker.loaders.protocol import Loader as Loader
    from stoker.loaders.shard_loader import StreamingShardLoader as StreamingShardLoader
    from stoker.order.by_length import Lengths as Lengths
    from stoker.order.mixture.schedule import Schedule as Schedule
    from stoker.order.subsets import HashSplit as HashSplit
    from stoker.order.subsets import KeepIds as KeepIds
    from stoker.order.subsets import SkipIds as SkipIds
    from stoker.order.subsets import SkipSteps as SkipSteps
    from stoker.order.subsets import train_validation_split as train_validation_split
    from stoker.pipeline.stats.stats import StreamStats as StreamStats
    from stoker.pipeline.stats.trace import Trace as Trace
    from stoker.pipeline.workers.adaptive import Adaptive as Adaptive
    from stoker.pipeline.workers.config import StreamingConfig as StreamingConfig
    from stoker.reading.bad_samples import BadSamples as BadSamples
    from stoker.reading.chain import Chain as Chain
    from stoker.reading.steps import Step as Step
    from stoker.streams.conditions import Where as Where
    from stoker.streams.streams import Stream as Stream
    from stoker.tokens.batch import LMBatch as LMBatch
    from stoker.tokens.settings import ShardConfig as ShardConfig
    from stoker.tokens.tokenize.tokenize import tokenize as tokenize
    from stoker.writers import open_writer as open_writer
    from stoker.writing.shard_formats import MDSWriter as MDSWriter

# Imported from here by programs that were written for mosaicml-streaming, and not listed.
_WRITERS: Final = "CSVWriter JSONWriter TSVWriter XSVWriter"

_MODULES: Final = {
    "cluster": "World",
    "cluster.mesh": "Mesh",
    "conversion": "convert",
    "errors": "StokerError",
    "formats.base": "ReadOptions",
    "formats.media.audio": "Audio",
    "formats.media.video": "Video",
    "index.merge": "merge_index",
    "index.shard_files": "rebuild_index",
    "inspection": "inspect inspect_tokens verify",
    "loaders.dataloader": "StreamingDataLoader",
    "loaders.dataset": "StreamingDataset",
    "loaders.lm_stream": "LMStream",
    "loaders.local": "LocalDataset",
    "loaders.parquet_loader": "StreamingParquetLoader",
    "loaders.protocol": "Loader",
    "loaders.shard_loader": "StreamingShardLoader",
    "order.by_length": "Lengths",
    "order.mixture.schedule": "Schedule",
    "order.subsets": "HashSplit KeepIds SkipIds SkipSteps train_validation_split",
    "pipeline.stats.stats": "StreamStats",
    "pipeline.stats.trace": "Trace",
    "pipeline.workers.adaptive": "Adaptive",
    "pipeline.workers.config": "StreamingConfig",
    "reading.bad_samples": "BadSamples",
    "reading.chain": "Chain",
    "reading.steps": "Step",
    "streams.conditions": "Where",
    "streams.streams": "Stream",
    "tokens.batch": "LMBatch",
    "tokens.settings": "ShardConfig",
    "tokens.tokenize.tokenize": "tokenize",
    "writers": f"open_writer {_WRITERS}",
    "writing.shard_formats": "MDSWriter",
}
"""The names that each module has."""

_SUBMODULES: Final = ("compat", "errors", "image", "media", "partitions", "testing", "tokens", "util", "writers")

_MOVED: Final = {
    **dict.fromkeys(
        ("Contiguous", "Elastic", "HashBased", "RangeBased", "RoundRobin", "Stratified"), "stoker.partitions"
    ),
    **dict.fromkeys(("MegatronSource", "RawSource", "TokenSource"), "stoker.tokens"),
    **dict.fromkeys(("Encoding", "register_encoding"), "stoker.formats.mds.encodings"),
    "Coordination": "stoker.coordination",
}
"""Names that are looked for here, and where they are."""

_OF_BENCH: Final = ("DatasetSpec", "generate")
"""Names that the package stoker-bench brings, in the group ``stoker.names`` of its entry points."""

_names, _get = lazy_package(__name__, _MODULES)


def __getattr__(name: str) -> Any:
    if name == "__all__":
        unlisted = {*_WRITERS.split(), *(() if _has_torch() else ("StreamingDataLoader",))}
        return sorted({*_names, "__version__"} - unlisted)
    if name in _SUBMODULES:
        return import_module(f"stoker.{name}")
    if name in _MOVED:
        raise no_attribute(f"module 'stoker' has no attribute {name!r}: it is in {_MOVED[name]}")
    if name not in _OF_BENCH:
        return _get(name)
    from stoker.lazy import INSTALL_BENCH, load_plugin, plugins

    found = plugins("stoker.names").get(name)
    if found is None:
        raise no_attribute(f"stoker.{name} is of the package stoker-bench, which is not installed: {INSTALL_BENCH}")
    return load_plugin(found, f"stoker.{name}")


def __dir__() -> list[str]:
    names: list[str] = __getattr__("__all__")
    return names


def _has_torch() -> bool:
    # A star import works without torch; only one that asks for `__all__` pays for the search.
    from importlib.util import find_spec

    try:
        return find_spec("torch") is not None
    except ImportError:  # an import hook that keeps it out
        return False
