"""Every key of DLIO's and MLPerf Storage's workload files, and what it is here.

After ``LoadConfig`` of argonne-lcf/dlio_benchmark (June 2026) and of mlcommons/DLIO_local_changes (July 2026, marked ML).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class Key:
    """One of DLIO's keys.

    Attributes:
        ours: the dotted path of the setting that it is; ``None`` where there is none.
        convert: DLIO's value to ours, where they differ. ``None`` from it: leave our default.
        said: what a run says where the key is given: what is different, or why it has no effect. Empty: the same.
        ignored: whether DLIO has no use for it either.
    """

    ours: str | None = None
    convert: Callable[[Any], Any] | None = None
    said: str = ""
    ignored: bool = False


OLD_NAMES: Final = {
    **{f"dataset.record_length{end}": f"dataset.record_length_bytes{end}" for end in ("", "_stdev", "_resize")},
    "model": "model.name",
    "checkpoint.model_size": "model.model_size_bytes",
    **{f"checkpoint.{name}": f"model.{name}" for name in ("num_layers", "layer_parameters", "optimization_groups")},
    **{f"checkpoint.{name}_parallelism": f"model.parallelism.{name}" for name in ("tensor", "pipeline")},
}
"""Keys of DLIO 2.0.0 to their later names, which hold where both are given."""
_OLD_MODEL: Final = "DLIO 2.0.0's name of model.{}; later versions of DLIO ignore it"
_OLD_NAME: Final = "DLIO 2.0.0's name of record_length_bytes{}; later versions of DLIO ignore it, and take {}"


def _format(value: Any) -> Any:
    return {"mmap_indexed_binary": "indexed_binary", "synthetic": "npz"}.get(value, value)


def _shuffled(value: Any) -> bool:
    return value not in {False, "off", None}  # YAML reads a bare off as false


def _positive(value: Any) -> Any:
    return value if isinstance(value, int | float) and value > 0 else None


def _whole(value: Any) -> Any:
    # Published files have such as 114660.07; DLIO takes the integer square root of it.
    return int(value) if isinstance(value, float) else value


def _loader(value: Any) -> str:
    return {"synthetic": "synthetic"}.get(value, "stoker")


def _columns(value: Any) -> Any:
    kinds = {"list": "float32", "binary": "bytes", "string": "string"}
    made: list[dict[str, Any]] = []
    for one in value:
        kind = str(one.get("dtype", "float32"))
        size = int(one.get("size", 1))
        shape = [size] if size > 1 or kind in {"binary", "string"} else []
        column: dict[str, Any] = {"name": str(one.get("name")), "dtype": kinds.get(kind, kind), "shape": shape}
        if "read" in one:
            column["read"] = bool(one["read"])
        made.append(column)
    return made


_ONE_FILE: Final = "stoker has one process for all ranks of a host to talk to, and one place for results: --results"
_OF_TF: Final = "a hint to TensorFlow"
_CODE: Final = "a Python class of DLIO's: write a loader for stoker and name it in reader.loader"
_KSM: Final = "merging equal pages of memory; checkpoints are streamed here, and need no memory for tensors"
_STORE: Final = "storage.options"

CHANGES: Final = frozenset(
    {
        *("dataset.num_subfolders_eval", "dataset.compression_level", "dataset.enable_chunking", "dataset.chunk_size"),
        *("dataset.parquet.partition_by", "reader.shuffle_size", "reader.file_access", "reader.read_type"),
        *("reader.preprocess_time", "reader.preprocess_time_stdev", "reader.dont_use_mmap"),
        *("reader.transformed_record_dims", "reader.transformed_record_element_type", "reader.reader_classname"),
        *("reader.data_loader_classname", "reader.data_loader_sampler", "checkpoint.mode"),
        *("checkpoint.checkpoint_mechanism_classname", "checkpoint.fsync", "checkpoint.recovery_rank_shift"),
        *("dataset.record_length", "dataset.record_length_stdev", "dataset.record_length_resize"),
        *("dataset.parquet.columns", "reader.data_loader", "reader.sample_shuffle"),
    }
)
"""Keys that are no setting here or another one, so that a run may have another result than DLIO's."""

KEYS: Final[dict[str, Key]] = {
    "framework": Key(said="loaders are chosen by --loader; no framework is needed"),
    "model": Key("name", said="DLIO 2.0.0's name of model.name"),
    "model.name": Key("name"),
    "model.type": Key("model.type", lambda value: "none" if value is None else str(value)),
    "model.model_size_bytes": Key("model.size_bytes"),
    "model.model_size": Key(said="DLIO's own key is model_size_bytes, so that this has no effect there", ignored=True),
    "model.model_datatype": Key("model.model_dtype"),
    "model.optimizer_datatype": Key("model.optimizer_dtype"),
    "model.optimization_groups": Key("model.optimization_groups"),
    "model.num_layers": Key("model.layers", _positive),
    "model.layer_parameters": Key("model.layer_parameters"),
    "model.parallelism.tensor": Key("model.tensor"),
    "model.parallelism.pipeline": Key("model.pipeline"),
    "model.parallelism.data": Key("model.data", _positive),
    "model.parallelism.zero_stage": Key("model.zero_stage"),
    "model.transformer.vocab_size": Key("model.vocab_size"),
    "model.transformer.hidden_size": Key("model.hidden_size"),
    "model.transformer.ffn_hidden_size": Key("model.ffn_hidden_size"),
    "model.transformer.num_attention_heads": Key("model.attention_heads"),
    "model.transformer.num_kv_heads": Key("model.kv_heads"),
    "workflow.generate_data": Key("stages"),
    "workflow.train": Key("stages"),
    "workflow.evaluation": Key("stages"),
    "workflow.checkpoint": Key("stages"),
    "workflow.profiling": Key(said="processor, memory and bytes of the device are recorded in every run"),
    "workflow.debug": Key(said="no key of DLIO's LoadConfig", ignored=True),
    "storage.storage_type": Key(
        "storage.url", said="part of the URL: local_fs is a path, s3 is s3://; ML's direct_fs is client direct, too"
    ),
    "storage.storage_root": Key("storage.url"),
    "storage.storage_library": Key("storage.client", said="ML; s3torchconnector and s3dlio need --loader torch"),
    "storage.post_generation_settle_seconds": Key(
        "storage.settle_seconds", said="ML; here a limit on waiting until all files are listed"
    ),
    "storage.storage_options.access_key_id": Key(_STORE),
    "storage.storage_options.secret_access_key": Key(_STORE),
    "storage.storage_options.endpoint_url": Key(_STORE, said="obstore's endpoint"),
    "storage.storage_options.region": Key(_STORE),
    "storage.storage_options.s3_force_path_style": Key(_STORE, said="obstore's virtual_hosted_style_request, inverted"),
    "storage.storage_options.s3_max_attempts": Key("storage.attempts", said="obstore: by time, a minute for each"),
    "storage.storage_options.storage_library": Key("storage.client", said="ML; see storage.storage_library"),
    "dataset.data_folder": Key("storage.url"),
    "dataset.format": Key("dataset.format", _format),
    "dataset.num_files_train": Key("dataset.files"),
    "dataset.num_files_eval": Key("dataset.files_eval"),
    "dataset.num_samples_per_file": Key("dataset.samples_per_file"),
    "dataset.record_length_bytes": Key("dataset.record_bytes", _whole),
    "dataset.record_length_bytes_stdev": Key("dataset.record_bytes_stdev", _whole),
    "dataset.record_length_bytes_resize": Key("dataset.resize_bytes", _whole),
    "dataset.record_length": Key("dataset.record_bytes", _whole, said=_OLD_NAME.format("", "64 KiB")),
    "dataset.record_length_stdev": Key("dataset.record_bytes_stdev", _whole, said=_OLD_NAME.format("_stdev", "0")),
    "dataset.record_length_resize": Key("dataset.resize_bytes", _whole, said=_OLD_NAME.format("_resize", "0")),
    "dataset.num_subfolders_train": Key("dataset.subfolders"),
    "dataset.num_subfolders_eval": Key(said="one number for both, dataset.subfolders"),
    "dataset.file_prefix": Key("dataset.prefix"),
    "dataset.compression": Key("dataset.compression"),
    "dataset.compression_level": Key(said="the codec's default level"),
    "dataset.enable_chunking": Key(said="chunks of HDF5: dataset.settings"),
    "dataset.chunk_size": Key(said="chunks of HDF5: dataset.settings"),
    "dataset.keep_files": Key(said="files are always kept"),
    "dataset.generation_buffer_size": Key(said="generation takes constant memory"),
    "dataset.record_dims": Key("dataset.settings", said="the shape of a sample"),
    "dataset.record_element_type": Key("dataset.settings", said="the dtype of a sample"),
    "dataset.record_element_bytes": Key(said="follows from record_element_type"),
    "dataset.data_gen_method": Key(said="ML; stoker has one generator"),
    "dataset.skip_listing": Key(said="ML; files are listed once, which is not timed as training"),
    "dataset.listing_validation_interval": Key(said="ML; see skip_listing"),
    "dataset.hdf5.chunk_dims": Key("dataset.settings"),
    "dataset.hdf5.num_dset_per_record": Key("dataset.settings"),
    "dataset.hdf5.max_shape": Key("dataset.settings"),
    "dataset.parquet.columns": Key(
        "dataset.columns", _columns, said="ML; here columns with read: false really are not read"
    ),
    "dataset.parquet.row_group_size": Key("dataset.row_group_rows"),
    "dataset.parquet.partition_by": Key(said="ML; generated files are not partitioned"),
    "dataset.parquet.generation_batch_size": Key(said="ML; generation takes constant memory"),
    "dataset.parquet.use_s3dlio_gen": Key(said="ML; stoker has one generator"),
    "dataset.parquet.read_mode": Key(said="no key of DLIO's LoadConfig", ignored=True),
    "reader.data_loader": Key(
        "reader.loader", _loader, said="the loader under test is stoker's unless --loader says otherwise"
    ),
    "reader.batch_size": Key("reader.batch_size"),
    "reader.batch_size_eval": Key("reader.batch_size_eval"),
    "reader.read_threads": Key("reader.threads"),
    "reader.write_threads": Key(said="ML; generation takes this host's processors, shared by its ranks"),
    "reader.computation_threads": Key(said=_OF_TF),
    "reader.prefetch_size": Key("reader.prefetch", lambda value: _positive(value) or 2),
    "reader.file_shuffle": Key("reader.shuffle", _shuffled),
    "reader.sample_shuffle": Key(
        "reader.shuffle",
        _shuffled,
        said="here samples really come in another order; DLIO's torch loader reads in listing order",
    ),
    "reader.shuffle_size": Key(said="the order is a permutation of all samples, not of a window"),
    "reader.file_access": Key(said="files are opened by each rank that needs them"),
    "reader.read_type": Key(said="data is read when it is needed; see storage.cache"),
    "reader.transfer_size": Key(said=_OF_TF),
    "reader.preprocess_time": Key(said="preprocessing is real here, never slept"),
    "reader.preprocess_time_stdev": Key(said="preprocessing is real here, never slept"),
    "reader.multiprocessing_context": Key(said="processes are never forked from ones with threads"),
    "reader.pin_memory": Key(said="memory is pinned where compute.kind is torch and the device is a GPU"),
    "reader.odirect": Key("storage.client", lambda value: "direct" if value else None, said="client direct"),
    "reader.dont_use_mmap": Key(said="stoker maps local files where the format allows"),
    "reader.transformed_record_dims": Key(said="dataset.resize_bytes"),
    "reader.transformed_record_element_type": Key(said="dataset.resize_bytes"),
    "reader.reader_classname": Key(said=_CODE),
    "reader.data_loader_classname": Key(said=_CODE),
    "reader.data_loader_sampler": Key(said="each sample comes once an epoch, on one rank"),
    "train.epochs": Key("train.epochs"),
    "train.computation_time": Key("compute.seconds"),
    "train.computation_time_stdev": Key("compute.seconds"),
    "train.total_training_steps": Key("train.steps", _positive, said="of each epoch, as in DLIO"),
    "train.seed": Key("train.seed"),
    "train.seed_change_epoch": Key("train.reshuffle"),
    "evaluation.eval_time": Key("evaluation.seconds"),
    "evaluation.eval_time_stdev": Key("evaluation.seconds"),
    "evaluation.eval_after_epoch": Key("evaluation.after_epoch"),
    "evaluation.epochs_between_evals": Key("evaluation.every", _positive),
    "checkpoint.checkpoint_folder": Key("checkpoint.url"),
    "checkpoint.checkpoint_after_epoch": Key("checkpoint.after_epoch"),
    "checkpoint.epochs_between_checkpoints": Key("checkpoint.every_epochs"),
    "checkpoint.steps_between_checkpoints": Key("checkpoint.every_steps", _positive),
    "checkpoint.type": Key(said="DLIO reads it into a field that nothing looks at", ignored=True),
    "checkpoint.mode": Key(
        said="with model.parallelism.data and fewer ranks, a subset is saved, and the result says so"
    ),
    "checkpoint.fsync": Key(
        "checkpoint.fsync", said="DLIO reads it into a field that no writer looks at; here it holds"
    ),
    "checkpoint.time_between_checkpoints": Key("checkpoint.pause_seconds", _positive),
    "checkpoint.num_checkpoints_write": Key("checkpoint.writes", _positive),
    "checkpoint.num_checkpoints_read": Key("checkpoint.reads", _positive),
    "checkpoint.model_size": Key("model.size_bytes", said=_OLD_MODEL.format("model_size_bytes")),
    "checkpoint.num_layers": Key("model.layers", _positive, said=_OLD_MODEL.format("num_layers")),
    "checkpoint.layer_parameters": Key("model.layer_parameters", said=_OLD_MODEL.format("layer_parameters")),
    "checkpoint.optimization_groups": Key("model.optimization_groups", said=_OLD_MODEL.format("optimization_groups")),
    "checkpoint.tensor_parallelism": Key("model.tensor", said=_OLD_MODEL.format("parallelism.tensor")),
    "checkpoint.pipeline_parallelism": Key("model.pipeline", said=_OLD_MODEL.format("parallelism.pipeline")),
    "checkpoint.rank_sync": Key(said="a checkpoint takes as long as its slowest rank"),
    "checkpoint.recovery_rank_shift": Key(
        "checkpoint.shift",
        lambda value: "host" if value else 0,
        said="DLIO reads it into a field that nothing looks at; here it holds",
    ),
    "checkpoint.randomize_tensor": Key(said="tensors are random, and differ on every rank"),
    "checkpoint.checkpoint_mechanism_classname": Key(said=_CODE),
    "checkpoint.ksm.madv_mergeable_id": Key(said=_KSM),
    "checkpoint.ksm.high_ram_trigger": Key(said=_KSM),
    "checkpoint.ksm.low_ram_exit": Key(said=_KSM),
    "checkpoint.ksm.await_time": Key(said=_KSM),
    "output.folder": Key(said=_ONE_FILE),
    "output.log_file": Key(said=_ONE_FILE),
    "output.metric.exclude_start_steps": Key("metric.exclude_start"),
    "output.metric.exclude_end_steps": Key("metric.exclude_end"),
    "profiling.profiler": Key(said="processor, memory and bytes of the device are recorded in every run"),
    "profiling.iostat_devices": Key(said="processor, memory and bytes of the device are recorded in every run"),
    "logging.verbosity": Key(said="no key of DLIO's LoadConfig", ignored=True),
    "metric.au": Key("metric.au"),
}
"""DLIO's dotted path to what it is here."""
