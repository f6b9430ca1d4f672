# ruff: noqa: RUF009 - setting() makes a field, as dataclasses.field does
"""A workload: what is trained on, how it is read, how long a step computes, and what is measured. Frozen dataclasses.

These are the settings of ``stoker bench``: section by section the keys of its YAML. :mod:`~stoker_bench.settings.sources`
reads them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Final, Literal

from stoker.display import is_secret
from stoker.errors import ConfigError
from stoker.storage import is_local
from stoker.storage.retry import STALL_TIMEOUT
from stoker.storage.transfer import LEAST_PART
from stoker_bench.settings.duration import Duration, parse_duration
from stoker_bench.settings.schema import ContradictionError, Section, setting
from stoker_bench.settings.workload_data import ColumnSpec, DatasetSettings
from stoker_bench.settings.workload_inference import KvCacheSettings, UserKind, VectorSettings
from stoker_bench.settings.workload_model import WIDTHS, CheckpointSettings, ModelSettings

__all__ = [
    "WIDTHS",
    "CheckpointSettings",
    "ColumnSpec",
    "Compute",
    "DatasetSettings",
    "Evaluation",
    "KvCacheSettings",
    "MetricSettings",
    "ModelSettings",
    "ReaderSettings",
    "Stage",
    "Storage",
    "Train",
    "UserKind",
    "VectorSettings",
    "Workload",
    "as_plain",
    "without_credentials",
]


def transfer_options(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of requests as a store has them, whose patience is in seconds: a stall time for each further attempt."""
    made = {_OPTION_NAMES.get(name, name): value for name, value in settings.items() if value is not None}
    if "attempts" in made:
        made["patience"] = (made.pop("attempts") - 1) * STALL_TIMEOUT
    return made


_OPTION_NAMES: Final = {"part_bytes": "part_size"}
ENDPOINT_NAMES: Final = ("endpoint", "endpoint_url", "endpoint_url_s3")
"""Options that name one endpoint."""
Stage = Literal["generate", "train", "evaluate", "checkpoint", "kv_cache", "vectors"]
"""The stages, in the order in which they run. ``evaluate`` runs between epochs of ``train``."""


@dataclass(frozen=True, slots=True)
class Compute(Section):
    """The work of an accelerator on a batch."""

    kind: Literal["simulated", "torch"] = setting(
        "simulated", "simulated: a clock; torch: forward and backward steps of a model"
    )
    seconds: Duration = setting(
        Duration(mean=0.0),
        "of a step: a number, or {distribution: normal, mean: 0.3, stdev: 0.01}",
        parse=parse_duration,
    )
    device: str = setting("cpu", "of torch: cpu, cuda, or cuda:N; cuda alone takes the rank's number on its host")
    hidden: int = setting(1024, "of torch: width of the model, which has two layers", least=1)


@dataclass(frozen=True, slots=True)
class ReaderSettings(Section):
    """The loader under test, and its settings."""

    loader: str = setting("stoker", "stoker, torch, synthetic, another package's (stoker bench list), or module:Class")
    batch_size: int = setting(1, "samples a step of one accelerator", least=1)
    batch_size_eval: int = setting(1, "the same, of evaluation", least=1)
    threads: int | Literal["auto"] = setting(
        "auto",
        "reading ahead: threads or processes; auto: this host's processors shared by its ranks, up to 8",
        least=0,
    )
    prefetch: int = setting(
        2,
        "batches ready ahead, of loaders that count so: torch; stoker reads as far ahead as its threads and memory allow",
        least=0,
    )
    shuffle: bool = setting(True, "a new order of samples in each epoch")
    decode: bool = setting(True, "samples as arrays; false: their bytes as they are, which the result says")
    checksums: bool = setting(
        False, "compare the checksums that files carry (npz, tfrecord, png, parquet) before samples are delivered"
    )
    last_batch: Literal["drop", "keep"] = setting("drop", "the last batch where it is not full")
    bind: Literal["none", "cores", "numa"] = setting(
        "none", "ranks with all that they start to processors: equal parts of the host's cores, or a NUMA node each"
    )
    options: dict[str, Any] = setting(dict, "what else the loader understands")


@dataclass(frozen=True, slots=True)
class Storage(Section):
    """The location of the data, and how it is read."""

    url: str | None = setting(None, "a directory or URL; training files are below train/, others below valid/")
    cache: Literal["drop", "keep"] = setting(
        "drop", "drop: the files leave the page cache before each epoch; keep: nothing is dropped"
    )
    client: str = setting(
        "auto",
        "what reads for the loaders stoker and torch: buffered, direct (O_DIRECT), mmap; obstore, boto3, minio; for torch "
        "s3torchconnector and s3dlio, too",
    )
    endpoints: tuple[str, ...] = setting((), "S3: servers of the same data, instead of the endpoint in options")
    endpoint_per: Literal["request", "rank"] = setting(
        "request", "of several endpoints: requests go to them in turn, or each rank has one"
    )
    part_bytes: int | None = setting(
        None,
        "most bytes of a request for a part of an object; null: an object a request",
        unit="bytes",
        least=LEAST_PART,
    )
    part_requests: int | None = setting(None, "requests of one object at once; null: 4", least=1)
    attempts: int | None = setting(
        None, "tries of a request, the first counted; null: 6. obstore: by time, a minute for each", least=1
    )
    settle_seconds: float = setting(0.0, "wait until all generated objects are listed, at most so long", least=0)
    options: dict[str, Any] = setting(
        dict, "credentials and settings by obstore's names, such as endpoint", secret=True
    )

    @property
    def transfer(self) -> dict[str, Any]:
        """The settings of requests that were given, by their names here."""
        given = {name: getattr(self, name) for name in ("endpoints", "part_bytes", "part_requests", "attempts")}
        return {name: value for name, value in given.items() if value not in ((), None)}

    def store_options(self, url: str, rank: int = 0, options: Mapping[str, Any] | None = None) -> dict[str, Any] | None:
        """The ``storage_options`` of a store; ``None`` for a directory.

        Args:
            url: of the store.
            rank: the one that asks.
            options: credentials and settings instead of ``options``, as of checkpoints.
        """
        if is_local(url):
            return None
        made = dict(self.options if options is None else options)
        made |= transfer_options(self.transfer)
        if self.endpoints:
            made = {name: value for name, value in made.items() if name.removeprefix("aws_") not in ENDPOINT_NAMES}
            if self.endpoint_per == "rank":
                made["endpoint_number"] = rank
        return made or None

    def read_options(self, url: str, rank: int = 0) -> dict[str, Any] | None:
        """``storage_options`` of the store that stoker's own loader reads through: those of ``client``, too."""
        made = dict(self.store_options(url, rank) or {})
        if self.client in ("boto3", "minio"):
            made["library"] = self.client
        if is_local(url) and self.client in ("direct", "buffered"):
            requests = {"part_size": self.part_bytes, "part_requests": self.part_requests}
            made |= {"read_by": self.client, **{name: value for name, value in requests.items() if value is not None}}
        return made or None


@dataclass(frozen=True, slots=True)
class Train(Section):
    """The training loop."""

    epochs: int = setting(1, "times through the data", least=1)
    steps: int | None = setting(None, "end each epoch after so many steps; null: where the data ends", least=1)
    seed: int = setting(123, "of the order of samples and of the drawn computation times")
    reshuffle: bool = setting(True, "another order in each epoch")
    barrier: bool = setting(False, "all ranks wait for each other after each step, as if they reduced gradients")
    step_timeout: float = setting(
        600.0, "seconds without a step after which a rank hangs, and the run ends; 0: never", least=0
    )
    repeats: int = setting(1, "run the whole training so often, for the spread", least=1)


@dataclass(frozen=True, slots=True)
class Evaluation(Section):
    """Evaluation between epochs, on the files below ``valid/``."""

    seconds: Duration = setting(Duration(mean=0.0), "of a step, as compute.seconds", parse=parse_duration)
    after_epoch: int = setting(1, "the first epoch after which there is one", least=1)
    every: int = setting(1, "epochs from one to the next", least=1)


@dataclass(frozen=True, slots=True)
class MetricSettings(Section):
    """The steps that count, and the utilization to reach."""

    au: float = setting(0.9, "least accelerator utilization, 0 to 1, for the result to be a pass")
    exclude_start: int = setting(1, "steps at a block's begin that do not count: warm-up", least=0)
    exclude_end: int = setting(0, "steps at a block's end that do not count", least=0)
    rules: Literal["stoker", "mlperf", "mlperf-open", "mlperf-v2", "mlperf-v2-open"] = setting(
        "stoker", "that decide besides stoker's: of MLPerf Storage v3 or v2, closed or open division"
    )
    smoke: bool = setting(False, "a smoke test: whatever it measures, it never counts as a pass")
    calibrate: bool = setting(
        False, "first read a copy of some files from memory: the utilization that endless storage would give"
    )
    calibrate_bytes: int = setting(1 << 28, "how much is copied for that, on each host", unit="bytes")

    def __post_init__(self) -> None:
        Section.__post_init__(self)
        if not 0 <= self.au <= 1:
            raise ConfigError(f"au is a part of 1, got {self.au}")


@dataclass(frozen=True, slots=True)
class Workload:
    """All of it. ``Workload()`` is what an empty file means."""

    name: str = setting("default", "for the results")
    accelerator: str = setting("none", "what compute.seconds was measured on; for the results alone")
    stages: tuple[Stage, ...] = setting(
        ("train",), "those to run: generate, train, evaluate, checkpoint, kv_cache, vectors"
    )
    compute: Compute = setting(Compute, "what an accelerator does with a batch")
    dataset: DatasetSettings = setting(DatasetSettings, "the files")
    reader: ReaderSettings = setting(ReaderSettings, "the loader under test")
    storage: Storage = setting(Storage, "where the data is")
    train: Train = setting(Train, "the training loop")
    evaluation: Evaluation = setting(Evaluation, "evaluation between epochs; needs dataset.files_eval")
    model: ModelSettings = setting(ModelSettings, "the model whose state a checkpoint holds, or a KV cache")
    checkpoint: CheckpointSettings = setting(CheckpointSettings, "saving and loading of checkpoints")
    kv_cache: KvCacheSettings = setting(KvCacheSettings, "writing and reading of a model's KV cache")
    vectors: VectorSettings = setting(VectorSettings, "search of vectors in an index on storage")
    metric: MetricSettings = setting(MetricSettings, "what counts")

    def __post_init__(self) -> None:
        if len(set(self.stages)) != len(self.stages) or not self.stages:
            raise ContradictionError("stages are each named once, and at least one", "stages")
        if "evaluate" in self.stages and not self.dataset.files_eval:
            raise ContradictionError("evaluation needs files: dataset.files_eval is 0", "stages", "dataset.files_eval")
        if "evaluate" in self.stages and "train" not in self.stages:
            raise ContradictionError("evaluation runs between epochs of training: name train, too", "stages")
        if "kv_cache" in self.stages and not self.model.kv_bytes:
            raise ContradictionError("a KV cache needs a model: model.layers is 0", "stages", "model.layers")
        if self.compute.kind == "torch" and not self.reader.decode:
            raise ContradictionError(
                "a real step needs arrays: reader.decode is false", "compute.kind", "reader.decode"
            )
        if self.reader.checksums and not self.reader.decode:
            raise ContradictionError(
                "checksums are compared by decoding: reader.decode is false", "reader.checksums", "reader.decode"
            )

    @property
    def block_steps(self) -> int | None:
        """Steps after which a checkpoint ends a block; ``None`` where a block is an epoch."""
        return self.checkpoint.every_steps if "checkpoint" in self.stages else None

    def steps_of(self, samples: int, ranks: int) -> int:
        """Full steps of an epoch of ``samples`` on ``ranks``, before ``train.steps`` cuts it."""
        return samples // (self.reader.batch_size * ranks)


def as_plain(section: Any) -> Any:
    """A workload as dicts, lists and scalars, for JSON and YAML; reading that gives the same workload."""
    if isinstance(section, Duration):
        return section.plain
    if is_dataclass(section):
        return {one.name: as_plain(getattr(section, one.name)) for one in fields(section)}
    if isinstance(section, tuple | list):
        return [as_plain(one) for one in section]
    return section


def without_credentials(plain: Mapping[str, Any]) -> dict[str, Any]:
    """A workload of :func:`as_plain`, in which options whose names may be those of credentials have no value.

    Example:
        >>> plain = as_plain(Workload(storage=Storage(options={"endpoint": "http://s3", "secret_access_key": "abc"})))
        >>> without_credentials(plain)["storage"]["options"]
        {'endpoint': 'http://s3', 'secret_access_key': '(not recorded)'}
    """
    made = dict(plain)
    for section in ("storage", "checkpoint"):
        options = {
            name: "(not recorded)" if is_secret(name) else value for name, value in plain[section]["options"].items()
        }
        made[section] = {**plain[section], "options": options}
    return made
