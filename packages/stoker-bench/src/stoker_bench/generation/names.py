"""Names of the files of a synthetic dataset."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from stoker.index.shard_files import shard_name
from stoker_bench.generation.spec import DatasetSpec

SPLITS = ("train", "valid")


@dataclass(frozen=True, slots=True)
class Output:
    """One file.

    Attributes:
        name: its path below the root.
        index: among all files, in order.
        number: of the file, or of the pair of files, counted over training and validation: what its bytes depend on.
        split: ``train``, ``valid``, or empty where there is no validation.
    """

    name: str
    index: int
    number: int
    split: str


def file_names(spec: DatasetSpec) -> list[str]:
    """The names of all files, in order; of Megatron's pairs, the ``.bin`` and then the ``.idx``."""
    return [one.name for one in outputs(spec)]


def outputs(spec: DatasetSpec) -> Iterator[Output]:
    """All files, in order."""
    for index in range((spec.files + spec.valid_files) * len(spec.form.suffixes)):
        yield output(spec, index)


def output(spec: DatasetSpec, index: int) -> Output:
    """The file at this index of :func:`file_names`."""
    number, part = divmod(index, len(spec.form.suffixes))
    split, inside, count = "", number, spec.files
    if spec.valid_files:
        split = SPLITS[number >= spec.files]
        if split == "valid":
            inside, count = number - spec.files, spec.valid_files
    digits = max(5, len(str(count - 1)))
    if spec.format == "mds":
        base = shard_name(inside, "mds", "data") + (
            f".{spec.compression.partition(':')[0]}" if spec.compression else ""
        )
    else:
        packed = f".{spec.compression.partition(':')[0]}" if spec.form.compressed_whole and spec.compression else ""
        base = f"{spec.prefix}-{inside:0{digits}}{spec.form.suffixes[part]}{packed}"
    folder = ""
    if spec.subfolders:
        width = max(2, len(str(spec.subfolders - 1)))
        folder = f"{inside % spec.subfolders:0{width}}/"
    return Output(f"{split}/{folder}{base}" if split else f"{folder}{base}", index, number, split)
