"""DLIO's and MLPerf Storage's workload files as stoker's settings, key by key (:mod:`stoker_bench.settings.dlio_keys`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from stoker.display import nearest
from stoker.errors import ConfigError
from stoker_bench.settings.dlio_keys import CHANGES, KEYS, OLD_NAMES
from stoker_bench.settings.schema import Node, at_path, flat, merge, tree_of

_SIGNS: Final = ("framework", "workflow", "output", "profiling", "data_reader", "workload")
"""Sections that DLIO's files have and stoker's have not."""
_INNER: Final[Mapping[str, tuple[str, ...]]] = {
    "dataset": ("num_files_train", "num_samples_per_file", "data_folder", "record_length_bytes"),
    "reader": ("data_loader", "read_threads", "file_shuffle", "sample_shuffle"),
    "train": ("computation_time", "total_training_steps"),
    "checkpoint": ("checkpoint_folder", "num_checkpoints_write"),
}
# Whole values below these paths, which are no sections of settings.
_VALUES: Final = frozenset(
    {"train.computation_time", "evaluation.eval_time", "reader.preprocess_time", "dataset.parquet.columns"}
)
_STAGES: Final = {
    "generate_data": "generate",
    "train": "train",
    "evaluation": "evaluate",
    "checkpoint": "checkpoint",
}
"""Keys of the section workflow, and the stages that they are."""
_STORE_NAMES: Final = {
    "access_key_id": "access_key_id",
    "secret_access_key": "secret_access_key",
    "endpoint_url": "endpoint",
    "region": "region",
}


_DEFAULTS: Final = (
    ("dataset.format", "dataset.format", "tfrecord"),
    ("reader.file_shuffle", "reader.shuffle", False),
    ("model.model_size_bytes", "model.size_bytes", 10240),
    ("checkpoint.fsync", "checkpoint.fsync", False),
    ("", "checkpoint.ranks", "zero"),
)
"""DLIO's key, our setting, and DLIO's default where ours is another."""


def is_dlio(tree: Node) -> bool:
    """Whether a file is written in DLIO's keys."""
    if not isinstance(tree.value, dict):
        return False
    if any(name in tree.value for name in _SIGNS):
        return True
    for section, names in _INNER.items():
        inner = tree.value.get(section)
        if inner is not None and isinstance(inner.value, dict) and any(name in inner.value for name in names):
            return True
    return False


class Notes(NamedTuple):
    """Remarks on keys of DLIO's, in sentences.

    Attributes:
        changes: on keys that are something else here, so that the result may be another one than DLIO's.
        ignored: on keys that have no effect on the result, here or in DLIO.
    """

    changes: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()


def from_dlio(tree: Node) -> tuple[Node, Notes]:
    """A file of DLIO's as a tree of stoker's, and what is to be said about it.

    Keys that neither knows have no effect in DLIO, without a word; here they are named in the notes.

    Raises:
        ConfigError: a value is not what the key wants.
    """
    if (
        isinstance(tree.value, dict) and "workload" in tree.value
    ):  # a whole config.yaml, as DLIO leaves it in its output
        tree = tree.value["workload"]
    made, notes = dlio_settings(tree)
    given = {_section(path) for path, _ in _leaves(tree)}
    for path, ours, value in _DEFAULTS:
        if path not in given:
            made = merge(at_path(ours, Node(value, "DLIO's default")), made)
    # Ranks wait for each other after each step in DLIO ("to simulate allreduce"), and it drops what does not fill a batch.
    made = merge(made, at_path("train.barrier", Node(True, "as in DLIO")))
    made = merge(made, at_path("dataset.dlio", Node(True, "as in DLIO")))
    return made, notes


def dlio_settings(tree: Node, stages: Sequence[str] | None = None) -> tuple[Node, Notes]:
    """Settings of DLIO's keys, as a tree of stoker's, and what is to be said about them; no key has a default.

    Args:
        tree: a file of DLIO's, or some of its keys.
        stages: to which ``workflow`` adds, or from which it takes; default, those of DLIO.

    Raises:
        ConfigError: a value is not what the key wants.
    """
    renamed = {_section(path): node for path, node in _leaves(tree)}
    changes: list[str] = []
    ignored: list[str] = []
    for old, new in OLD_NAMES.items():
        if old in renamed and new in renamed:
            node = renamed.pop(old)
            if node.value != renamed[new].value:
                ignored.append(
                    f"{node.where}: {old} is not used: {new} ({renamed[new].where}) says {renamed[new].plain}"
                )
    made = Node({}, tree.where)
    kind = renamed.get("storage.storage_type")
    for path, node in renamed.items():
        key = KEYS.get(path)
        if path.endswith("storage_library") and kind is not None and kind.value != "s3":
            ignored.append(f"{node.where}: {path}: it is for objects, and storage_type ({kind.where}) is {kind.plain}")
            continue
        if key is None:
            ignored.append(f"{node.where}: {path} is not a key of DLIO's, which ignores it{nearest(path, KEYS)}")
            continue
        has = "DLIO ignores it; " if key.ignored else "" if key.ours else "it has no effect here: "
        if path in CHANGES:
            changes.append(f"{node.where}: {path}: {has}{key.said}")
        elif key.ours is None:
            ignored.append(f"{node.where}: {path}: {has}{key.said}")
        if key.ours is None or key.ours in {
            "stages",
            "storage.url",
            "storage.options",
            "compute.seconds",
            "evaluation.seconds",
            "dataset.settings",
        }:
            continue
        value = _converted(path, node)
        if value is not None:
            if key.ours == "reader.shuffle":  # of two keys
                value = value or _get(made, key.ours) is True
            made = merge(made, at_path(key.ours, tree_of(value, node.where)))
    for path, node in _together(renamed, tree.where, stages).items():
        made = merge(made, at_path(path, node))
    if renamed.get("dataset.format") is not None and renamed["dataset.format"].value == "synthetic":
        made = merge(made, at_path("reader.loader", Node("synthetic", renamed["dataset.format"].where)))
    return made, Notes(tuple(changes), tuple(ignored))


def _section(path: str) -> str:
    """A key's path, in the section's name of today."""
    return path.replace("data_reader.", "reader.", 1) if path.startswith("data_reader.") else path


def _leaves(tree: Node, path: str = "") -> list[tuple[str, Node]]:
    if path in _VALUES or not isinstance(tree.value, dict):
        return [(path, tree)]  # a section that is none becomes a key that nobody knows
    found: list[tuple[str, Node]] = []
    for name, inner in tree.value.items():
        full = f"{path}.{name}" if path else name
        found += _leaves(inner, full)
    return [(name, node) for name, node in found if name]


def _converted(path: str, node: Node) -> Any:
    convert = KEYS[path].convert
    if convert is None:
        return node.plain
    try:
        return convert(node.plain)
    except (TypeError, ValueError, AttributeError) as error:
        raise ConfigError(f"{node.where}: {path}: {node.plain!r} makes no sense there ({error})") from None


def _together(given: Mapping[str, Node], where: str, before: Sequence[str] | None) -> dict[str, Node]:
    """Settings that several of DLIO's keys make together."""
    made: dict[str, Node] = {}
    stages = []
    for name, stage in _STAGES.items():
        usual = stage in (("train",) if before is None else before)
        node = given.get(f"workflow.{name}")
        if node is not None and not isinstance(node.value, bool):
            raise ConfigError(f"{node.where}: workflow.{name} must be true or false, got {node.plain!r}")
        if usual if node is None else node.value:
            stages.append(stage)
    if "evaluate" in stages and "train" not in stages:
        stages.remove("evaluate")  # DLIO has no evaluation without training
    asked = [given[f"workflow.{name}"].where for name in _STAGES if f"workflow.{name}" in given]
    if before is None or asked:
        # An argument decides over what the file has; one of them is enough to say.
        made["stages"] = tree_of(stages, next((one for one in asked if one.startswith("the argument")), where))
    for time, spread, ours in (
        ("train.computation_time", "train.computation_time_stdev", "compute.seconds"),
        ("evaluation.eval_time", "evaluation.eval_time_stdev", "evaluation.seconds"),
    ):
        node, wide = given.get(time), given.get(spread)
        if node is None:
            continue
        value = node.plain
        if wide is not None and wide.value:
            value = {**(value if isinstance(value, dict) else {"mean": value}), "stdev": wide.value}
        if value not in (None, {}):
            made[ours] = tree_of(value, node.where)
    kind = given.get("storage.storage_type")
    if kind is not None and kind.value == "direct_fs":
        made["storage.client"] = Node("direct", kind.where)
    url = _url(given)
    if url is not None:
        made["storage.url"] = url
    options: dict[str, Node] = {}
    for path, node in given.items():
        name = path.removeprefix("storage.storage_options.")
        if path != name and name in _STORE_NAMES:
            options[_STORE_NAMES[name]] = node
        elif name == "s3_force_path_style" and isinstance(node.value, bool):
            options["virtual_hosted_style_request"] = Node(not node.value, node.where)
    if options:
        made["storage.options"] = Node(options, where)
    settings = {
        ours: given[path]
        for path, ours in (
            ("dataset.record_dims", "dims"),
            ("dataset.record_element_type", "dtype"),
            ("dataset.hdf5.chunk_dims", "chunks"),
            ("dataset.hdf5.num_dset_per_record", "datasets"),
            ("dataset.hdf5.max_shape", "max_shape"),
        )
        if path in given
    }
    if settings:
        made["dataset.settings"] = Node(settings, where)
    return made


def _url(given: Mapping[str, Node]) -> Node | None:
    folder, root, kind = (
        given.get(f"{name}") for name in ("dataset.data_folder", "storage.storage_root", "storage.storage_type")
    )
    if folder is None:
        return None
    text = str(folder.value)
    scheme = {"s3": "s3", "aistore": "ais"}.get(str(kind.value) if kind is not None else "", "")
    if scheme and "://" not in text:
        text = f"{scheme}://" + "/".join(
            part.strip("/") for part in (str(root.value) if root is not None else "", text) if part
        )
    elif root is not None and "://" not in text and not text.startswith("/") and str(root.value) not in {"", ".", "./"}:
        text = f"{str(root.value).rstrip('/')}/{text}"
    return Node(text.rstrip("/"), folder.where)


def _get(tree: Node, path: str) -> Any:
    return next((node.value for name, node in flat(tree) if name == path), None)
