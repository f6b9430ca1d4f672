"""The columns of a conversion: chosen, named, and given their encodings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from stoker.arguments import must_know
from stoker.conversion.open_source import OpenedSource, head, sample_types, spread
from stoker.conversion.schema import ColumnType, of_values
from stoker.conversion.sinks import ShardSettings, encoding_for
from stoker.conversion.source import ConversionSource
from stoker.conversion.task import SourceChunk
from stoker.conversion.values import ColumnPlan, SampleHandling
from stoker.errors import ConfigError
from stoker.formats.mds.encodings import get_encoding
from stoker.formats.one_file import CLASS, LABEL
from stoker.types import Sample
from stoker.writing.base import check_encoding

Columns = tuple[tuple[ColumnPlan, ...], tuple[ColumnPlan, ...], tuple[str, ...]]
"""Columns that are read, columns that are written, and names of images that a transform gets decoded."""

_ENOUGH = 16


def plan_columns(
    opened: OpenedSource,
    settings: ShardSettings,
    handling: SampleHandling,
    *,
    columns: Mapping[str, str],
    select: Sequence[str] | None,
) -> Columns:
    """Decide on the columns.

    ``columns`` are encodings that the caller chose; ``select`` columns of the source to read, default all. Where bad samples
    are left out, types are told without them.
    """
    transform, decode = handling.transform, handling.decode
    skip_bad = handling.bad_samples is not None
    for name, encoding in columns.items():
        check_encoding(name, encoding)
    there = opened.source.columns
    chosen = there if select is None else tuple(select)
    must_know("column", chosen, there, f"{opened.source.name}: ")
    if not chosen:
        raise ConfigError(f"{opened.source.name}: no columns to convert: name some with select=, or leave it out")
    if decode and transform is None:
        raise ConfigError("decode=True hands images to a transform, and there is none")
    if transform is None:
        plans = _renamed(opened, settings, chosen, columns, select is not None, skip_bad)
        known = {plan.name for plan in plans}
        for name in (*columns, *handling.fill):
            if name not in known:
                raise ConfigError(f"there is no column {name!r}; there are {', '.join(sorted(known))}")
        return plans, plans, ()
    types = sample_types(opened, chosen, skip_bad=skip_bad)
    images = {name for name in chosen if types[name].encoding in ("jpeg", "png") or types[name].reading == "picture"}
    if decode and not images:
        raise ConfigError(
            f"decode=True hands images to the transform, and none of the columns {', '.join(chosen)} is known to hold JPEG "
            "or PNG files: leave it out, and decode in the transform, such as by stoker.image.decode"
        )
    readings = {name: "plain" if said.reading == "picture" else said.reading for name, said in types.items()}
    inputs = tuple(
        ColumnPlan(name, name, types[name].encoding, readings[name], folder=opened.folder) for name in chosen
    )
    decoded = tuple(name for name in chosen if name in images) if decode else ()
    made = _tried(opened.source, inputs, decoded, handling)
    return inputs, _of_transform(made, inputs, decoded, handling, settings, columns), decoded


def _renamed(
    opened: OpenedSource,
    settings: ShardSettings,
    chosen: Sequence[str],
    columns: Mapping[str, str],
    selected: bool,
    skip_bad: bool,
) -> tuple[ColumnPlan, ...]:
    """The columns that are written without a transform, as the format calls them."""
    names = {name: name for name in chosen}
    if settings.single:
        names = _image_columns(opened, settings.format, chosen, selected)
    # What the caller decides is not found out.
    types = sample_types(opened, [source for source, name in names.items() if name not in columns], skip_bad=skip_bad)
    plans = []
    for source, name in names.items():
        said = types.get(source) or opened.types.get(source) or ColumnType("")
        if name in columns:
            reading = said.reading if said.reading == "file" else "plain"
            plans.append(ColumnPlan(name, source, columns[name], reading, None, True, opened.folder))
            continue
        if name == "image" and settings.single:
            plans.append(ColumnPlan(name, source, settings.format, said.reading, None, True, opened.folder))
            continue
        encoding = encoding_for(settings, name, said.encoding)
        keep = said.arrow if settings.format == "parquet" and said.reading != "file" else None
        plans.append(ColumnPlan(name, source, encoding, said.reading, keep, encoding != said.encoding, opened.folder))
    return tuple(plans)


def _image_columns(opened: OpenedSource, kind: str, chosen: Sequence[str], selected: bool) -> dict[str, str]:
    """Columns of the source to ``image`` and ``label``; the folder that an image is in is its label."""
    images = [name for name in chosen if name == "image"] or [
        name for name in chosen if opened.types.get(name, ColumnType("")).encoding in ("jpeg", "png")
    ]
    if len(images) != 1:
        raise ConfigError(f"to={kind!r} needs a column 'image', or one that is {kind}: there are {', '.join(chosen)}")
    label = next((name for name in (CLASS, LABEL) if name in chosen), None)
    names = {images[0]: "image", **({label: LABEL} if label else {})}
    left_out = [name for name in chosen if name not in names]
    if left_out and not (opened.source.single and not selected):
        raise ConfigError(
            f"a file holds an image, and its folder tells the label: leave {', '.join(left_out)} out with select="
        )
    return names


def _of_transform(
    made: Sequence[Sample],
    inputs: Sequence[ColumnPlan],
    decoded: Sequence[str],
    handling: SampleHandling,
    settings: ShardSettings,
    columns: Mapping[str, str],
) -> tuple[ColumnPlan, ...]:
    """The columns of what the transform returns, by what it ``made`` of some samples."""
    if not made:
        if not columns:
            raise ConfigError(
                "the transform left out all samples that were tried first: say what it returns for others with columns="
            )
        return tuple(ColumnPlan(name, name, encoding, chosen=True) for name, encoding in sorted(columns.items()))
    names = list(made[0])
    before = {plan.name: plan.encoding for plan in inputs}
    for name in (*columns, *handling.fill):
        if name not in names and name not in before:
            raise ConfigError(f"there is no column {name!r}: the transform returns {', '.join(map(repr, names))}")
    plans = []
    for name in names:
        if name in columns:
            plans.append(ColumnPlan(name, name, columns[name], chosen=True))
            continue
        values = [sample[name] for sample in made if sample.get(name) is not None]
        same = before.get(name)
        if same is not None and name not in decoded and _fits(same, values):
            said = ColumnType(same)
        else:
            said = of_values(values, name)
        encoding = encoding_for(settings, name, said.encoding)
        plans.append(ColumnPlan(name, name, encoding, said.reading, chosen=encoding != said.encoding))
    return tuple(plans)


def _tried(
    source: ConversionSource, inputs: Sequence[ColumnPlan], decoded: Sequence[str], handling: SampleHandling
) -> list[Sample]:
    """Some of the samples that the transform returns for the first ones, or for some from all over the source."""
    failed: Exception | None = None
    for choice in (head, spread):
        chunk = SourceChunk(source, inputs, decoded, handling, *choice(source.sizes))
        batch, origin = chunk.taken(None)
        bad = chunk.bad or {}
        unread = len(bad) if len(origin) else 0
        made, _ = chunk.mapped(batch, origin, most=_ENOUGH)
        if made:
            return made
        failed = failed or next(islice(bad.values(), unread, None), None)
    if failed is not None:
        raise failed
    return []


def _fits(encoding: str, values: Sequence[Any]) -> bool:
    """Whether values that a transform returned are still of the type that the column had."""
    if not values:
        return False
    try:
        get_encoding(encoding).encode_column(list(values))
    except (ValueError, TypeError, OverflowError):
        return False
    return True
