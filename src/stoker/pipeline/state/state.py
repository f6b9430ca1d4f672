"""The state dict of a run: written from its position, and checked against the dataset and settings that resume it."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from stoker.errors import ConfigError, StateError
from stoker.order.capabilities import (
    StreamHistory,
    consumed_samples,
    epoch_ended,
    in_epoch,
    mosaicml_position,
    mosaicml_state,
    origin_of,
    read_start,
    settled,
    stream_urls,
)
from stoker.order.mixture.reached import Reached, RunProgress
from stoker.order.mixture.schedule import Schedule
from stoker.order.mixture.stream_quotas import twin_numbers
from stoker.order.sample_order import DataRank, EpochPosition, SampleOrder
from stoker.pipeline.state.packed import PACKED_VERSION, cut_alike, pack_state, unpack_state
from stoker.storage.recorded_versions import VERSIONS, check_versions, is_rewritten

logger = logging.getLogger(__name__)

STATE_VERSION: Final = 2
_SAME_ORDER: Final = ("fingerprint", "subset", "block_size")
"""Entries of a stream in a state that decide the order of its samples."""
_SAME_CONTENT: Final = ("content", VERSIONS, "snapshot")
"""Entries that tell, in addition, whether the samples are the same ones."""
_CHANGE_COUNTS: Final = ("filter(", "flat_map(")
"""Steps of a chain that decide which samples there are."""
_MOST_AWAY: Final = 256
"""Streams that were left out of which states remember how far they had got: about 150 bytes each."""


def make_state(sample_order: SampleOrder, point: EpochPosition, data_rank: DataRank) -> dict[str, Any]:
    """The state of a run as a JSON-serialisable dict: position, what the order depends on, and the dataset's identity.

    That of a run with many streams is packed: see :mod:`.packed`.
    """
    if point.position and epoch_ended(sample_order, point, data_rank):
        point = point.next_epoch()
    state: dict[str, Any] = {
        "version": STATE_VERSION,
        "epoch": point.epoch,
        "position": point.position,
        **sample_order.as_dict(),
        "consumed": consumed_samples(sample_order, point),
    }
    if origin_of(sample_order):
        state["origin"] = origin_of(sample_order)
    start = settled(sample_order, point, data_rank).start
    if start is not None:
        state["start"] = start.as_dict()
    if point.partial:
        # Inside a batch: which samples it still lacks depends on how the batch was cut.
        state["partial"] = {
            "samples": point.partial,
            "batch_size": data_rank.batch_size,
            "world_size": data_rank.world_size,
            "ranks_per_node": data_rank.ranks_per_node,
        }
    return pack_state(state) | mosaicml_state(sample_order, point, data_rank)


def read_state(
    state: Mapping[str, Any], sample_order: SampleOrder, data_rank: DataRank, what: str = "state"
) -> tuple[EpochPosition, SampleOrder]:
    """Check a state against the dataset and settings at hand.

    Args:
        state: the state.
        sample_order: the order of the data at hand.
        data_rank: who reads.
        what: how the caller calls the state, for messages.

    Returns:
        The position to resume at, and the sample order. The order differs from the given one if the state's run had
        changed its streams.

    Raises:
        StateError: it is no state, or belongs to another dataset or another order; says exactly what differs.
    """
    _check_kind(state)
    if "version" not in state:
        return mosaicml_position(sample_order, state), sample_order
    packed, state = "packed" in state, unpack_state(state)
    theirs, epoch, position, inside = _fields(state)
    try:
        check_same_order(state, sample_order, what)
    except StateError as error:
        if not packed:
            raise
        raise StateError(
            f"{error}. stoker.util.unpack_state(state) is the state as plain text, with all streams"
        ) from None
    # Before "start" had names, its numbers were a list of "terms".
    start = read_start(sample_order, state["start"] if "start" in state else state.get("terms"))
    point = EpochPosition(epoch, position, start=start)
    if start is None and position and settled(sample_order, point, data_rank).start is not None:
        raise StateError(
            f"this {what} has no start of its epoch, on which the order of the rest depends: it is not complete"
        )
    if not in_epoch(sample_order, point):
        raise StateError(
            f"this {what}'s position {position} lies beyond the epoch of {sample_order.epoch_size} samples: it was changed, "
            "or is of a dataset that had more; resume with the data and epoch_size= of the run that saved it"
        )
    origin = state.get("origin") or {}
    if origin != origin_of(sample_order):
        if not isinstance(sample_order, StreamHistory):
            raise StateError(
                "this state is of a run that changed its streams, which a run in this order can not resume"
            )
        sample_order = sample_order.restarted(*_restart(origin))
    if not inside:
        return point, sample_order
    samples, batch_size, world_size, per_node = inside
    # Which samples of a batch are a rank's depends on nodes only where the order is mosaicml-streaming's.
    nodes = data_rank.ranks_per_node if "like" in theirs["order"] else per_node
    if (batch_size, world_size, per_node) != (data_rank.batch_size, data_rank.world_size, nodes):
        raise StateError(
            f"this state was taken inside a batch, {samples} samples into it, with batch_size {batch_size} on {world_size} "
            f"ranks, {per_node} a node; here they are {data_rank.batch_size}, {data_rank.world_size} and "
            f"{data_rank.ranks_per_node}. Take states between batches to resume on another cluster"
        )
    if not samples < batch_size:
        raise StateError(
            f"this {what} was taken after {samples} samples of a batch, which here has {batch_size}: resume with the "
            "batch_size= of the run that saved it"
        )
    return EpochPosition(epoch, position, samples, start), sample_order


def _incomplete(error: Exception) -> StateError:
    missing = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
    return StateError(
        f"this state of a StreamingDataset is incomplete: {missing}. Give what state_dict() returned, whole and as it was"
    )


def check_same_chain(state: Mapping[str, Any], chain: Sequence[str], *, inside: bool) -> None:
    """Compare the steps of the chain that a state names with those at hand. Differences are logged.

    Args:
        state: the state.
        chain: the steps at hand.
        inside: whether the state was taken inside an epoch.

    Raises:
        StateError: it was, and steps that decide which samples there are differ: some would come twice, or not at all.
    """
    theirs = state.get("chain", [])
    if not isinstance(theirs, list | tuple) or not all(isinstance(step, str) for step in theirs):
        raise StateError(f"this state's 'chain' should be a list of steps, found {theirs!r}")
    if list(theirs) == list(chain):
        return
    before, now = ([step for step in one if _changes_counts(step)] for one in (theirs, chain))
    told = f"{'.'.join(theirs) or 'no chain'}, and here it is {'.'.join(chain) or 'none'}"
    if inside and before != now:
        raise StateError(
            f"this state was taken inside an epoch whose samples were chosen or made by {told}: some would come twice or not "
            "at all. Give the dataset the same filter() and flat_map() steps, or load a state of an epoch's end"
        )
    logger.warning("resuming with another chain: samples were made by %s", told)


def _changes_counts(step: str) -> bool:
    return step.startswith(_CHANGE_COUNTS) or (step.startswith("join(") and step.endswith("missing='leave_out')"))


def check_same_others(state: Mapping[str, Any], others: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Compare the datasets that a state names beside its own with those at hand, by the names of zips and joins.

    Raises:
        StateError: one is another dataset now.
    """
    theirs = state.get("others", {})
    if not isinstance(theirs, Mapping) or not all(
        isinstance(one, list | tuple) and all(isinstance(about, Mapping) for about in one) for one in theirs.values()
    ):
        raise StateError(f"this state's 'others' should say which datasets were joined, found {theirs!r}")
    for name, before in theirs.items():
        now = others.get(name)
        if now is None:  # the chains differ, which is told
            continue
        same = len(before) == len(now) and all(
            it.get("fingerprint") == its.get("fingerprint") and not _written_anew(it, its)
            for it, its in zip(before, now, strict=True)
        )
        if not same:
            first, second = (", ".join(str(about.get("fingerprint")) for about in one) for one in (before, now))
            raise StateError(
                f"this state's run took columns of {name!r} from another dataset (fingerprint {first}, this one has {second}"
                f"{'' if first != second else ', and was written anew since'}): join the dataset that it was taken with, or "
                "give the new one another name="
            )


def check_same_order(state: Mapping[str, Any], sample_order: SampleOrder, what: str) -> None:
    """Check what a state says of streams and order, as :meth:`SampleOrder.as_dict` gave it, against those at hand.

    Raises:
        StateError: they differ; says in what.
    """
    theirs, ours = _described(state), sample_order.as_dict()
    ours = {**ours, "streams": {n: cut_alike(s, theirs["streams"].get(n, {})) for n, s in ours["streams"].items()}}
    said, changed = _compare(theirs, ours)
    if said:
        remedy = "Use the data and the settings that it was taken with"
        appended = _appended_to(theirs, ours, sample_order)
        if appended:
            said.append(f"files were appended to {', '.join(map(repr, appended))} since, behind those that were there")
        if (changed or appended) and what == "state":
            remedy += ", or call dataset.load_state_dict(state, change_streams=True) to continue with these streams"
        raise StateError(f"this {what.partition('.')[0]} belongs to another order: {'; '.join(said)}. {remedy}")
    check_versions(theirs, ours, stream_urls(sample_order), what)


def read_changed(state: Mapping[str, Any], sample_order: SampleOrder) -> tuple[EpochPosition, SampleOrder]:
    """Go on with other streams where a state was taken.

    Returns:
        The position, and a sample order in which each stream continues after the samples that the state's run delivered.

    Raises:
        StateError: more than the streams and their weights differs.
    """
    _check_kind(state)
    if "version" not in state:
        raise StateError(_NO_STATE)
    state = unpack_state(state)
    theirs, epoch, position, inside = _fields(state)
    ours = sample_order.as_dict()
    said = _beside_streams(theirs["order"], ours["order"])
    if said:
        raise StateError(
            f"change_streams=True changes streams and weights, not the rest of the order: {'; '.join(said)}. Set that as it "
            "was; what was left to its default may have another with other streams"
        )
    restart = _restart(state.get("origin"))
    numbers = twin_numbers(_fingerprints(theirs), restart.twins)
    found = _reached(state, theirs, EpochPosition(epoch, position), inside, restart, sample_order)
    if found is None or not isinstance(sample_order, StreamHistory):
        begin = EpochPosition(epoch + 1 if position or inside else epoch)
        logger.warning("resuming with other streams: epoch %d begins", begin.epoch)
        return begin, sample_order
    here = _names_here(theirs, ours)
    known = [(one["name"], one) for one in restart.away]
    for name, reached in found.reached.items():
        one = _left_out(name, theirs["streams"][name], reached, numbers.get(name, 0))
        if name in restart.appended:
            one["appended"] = restart.appended[name]
        known.append((here.get(name, name), one))
    choose = {name: about.get("choose") for name, about in theirs["streams"].items()}
    touched = {name for name, left in found.left.items() if is_count(choose[name]) and left < choose[name]}
    kept: dict[str, int] = {}
    twins: dict[str, int] = {}
    passed: dict[str, Any] = {}
    appended: dict[str, list[Any]] = {}
    grown: list[str] = []
    away: list[dict[str, Any]] = []
    for name, one in known:
        its = ours["streams"].get(name)
        before = None if its is None else _before(sample_order, name, its, one)
        if its is not None and _same(its, one):
            kept[name] = one["consumed"]
            twins[name] = one.get("twin", 0)
            if one.get("passed"):
                passed[name] = one["passed"]
            if one.get("appended"):
                appended[name] = list(one["appended"])
        elif before is not None:
            grown.append(name)
            kept[name] = one["consumed"]
            told = appended[name] = [*one.get("appended", ())]
            if not told or told[-1]["consumed"] != one["consumed"]:  # else nothing was had in between
                held = {of: one[of] for of in ("samples", "consumed", "passed", "block_size", "twin") if of in one}
                told.append({**held, "fingerprint": before["fingerprint"], "inside": one["name"] in touched})
        elif its is not None and one["name"] in found.reached and _has_more(its, one):
            raise _not_behind(name, its, one)
        elif one["consumed"]:
            away.append(one)
    if len(away) > _MOST_AWAY:
        logger.warning(
            "states remember %d streams that were left out: %s would begin anew if they came back",
            _MOST_AWAY,
            ", ".join(one["name"] for one in away[:-_MOST_AWAY]),
        )
    size: Any = theirs["order"].get("epoch_size")
    if not is_count(size):
        raise StateError(f"this state's order should have its epoch_size, found {size!r}")
    samples = restart.samples + (epoch - restart.epoch) * size + found.had - restart.position
    rest: dict[str, int] = {}
    if grown and len(here) == len(theirs["streams"]) == len(ours["streams"]) > 1 and "schedule" not in ours["order"]:
        # All that was left of the epoch, and what was appended, and no shares of both.
        more = {
            mine: ours["streams"][mine]["choose"] - theirs["streams"][name]["choose"] for name, mine in here.items()
        }
        rest = {mine: found.left[name] + more[mine] for name, mine in here.items()}
        rest = rest if min(rest.values()) >= 0 else {}
    listed = _fingerprints(ours)
    if twin_numbers(listed, {}) == twin_numbers(listed, twins):
        twins = {}
    changed = sample_order.restarted(epoch, kept, samples, away[-_MOST_AWAY:], twins, found.had, passed, appended, rest)
    origin = _restart(origin_of(changed))
    logger.warning(
        "resuming with other streams: epoch %d %s; %s continue where they were%s%s",
        origin.epoch,
        f"goes on at position {origin.position}" if origin.position else "begins",
        ", ".join(sorted(kept)) or "none",
        "".join(f", {name} begins" for name in sorted(ours["streams"].keys() - kept.keys())),
        f"; files were appended to {', '.join(grown)}" if grown else "",
    )
    return EpochPosition(origin.epoch, origin.position), changed


def same_so_far(state: Mapping[str, Any], sample_order: SampleOrder) -> bool:
    """Whether a state's run had the weights that this order has up to where the state was taken, and others from there on."""
    _check_kind(state)
    if "version" not in state or not isinstance(sample_order, StreamHistory):
        return False
    theirs, ours = _described(state := unpack_state(state)), sample_order.as_dict()
    before, now = theirs["order"].get("schedule"), ours["order"].get("schedule")
    if not isinstance(before, Mapping) or now is None or _plain(before) == _plain(now):
        return False
    if _compare({**theirs, "order": {**theirs["order"], "schedule": now}}, ours)[0]:
        return False
    _, epoch, position, _ = _fields(state)
    restart = _restart(state.get("origin"))
    size = ours["order"]["epoch_size"]
    samples = restart.samples + (epoch - restart.epoch) * size + position - restart.position
    try:
        names = ours["order"].get("streams", list(ours["streams"]))
        return Schedule.from_dict(before).same_until(Schedule.from_dict(now), names, size, samples)
    except (ConfigError, LookupError, TypeError, ValueError, AttributeError):
        return False


def _reached(
    state: Mapping[str, Any],
    theirs: Mapping[str, Any],
    point: EpochPosition,
    inside: tuple[int, ...],
    restart: _Restart,
    sample_order: SampleOrder,
) -> RunProgress | None:
    """The progress of the state's run in its epoch and streams; ``None`` where epochs do not continue streams."""
    if not isinstance(sample_order, StreamHistory):
        return None
    world = None
    if inside:
        partial, batch_size, world_size, per_node = inside
        point = replace(point, partial=partial)
        world = DataRank(0, world_size, per_node, batch_size)
    point = replace(point, start=read_start(sample_order, state["start"] if "start" in state else state.get("terms")))
    try:
        return sample_order.reached(theirs, restart._asdict(), point, world)
    except (ConfigError, ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise StateError(
            f"this state does not say what its run had of each stream ({error!r}): give what state_dict() returned, whole "
            "and as it was"
        ) from error


def _fingerprints(told: Mapping[str, Any]) -> dict[str, str]:
    """Fingerprints of an order's streams by name, in the order of the streams."""
    streams = told["streams"]
    return {name: str(streams[name].get("fingerprint", "")) for name in told["order"].get("streams", streams)}


def _left_out(name: str, about: Mapping[str, Any], reached: Reached, twin: int) -> dict[str, Any]:
    """The entry of a stream that is left out, from which it continues when it comes back."""
    return (
        {"name": name, "consumed": reached.count}
        | reached.as_dict()
        | ({"twin": twin} if twin else {})
        | {of: about[of] for of in (*_SAME_ORDER, *_SAME_CONTENT, "samples") if about.get(of) is not None}
    )


class _Restart(NamedTuple):
    """The point at which a run with changed streams began anew; at first the beginning of training.

    Attributes:
        epoch: its number.
        consumed: samples of each stream before, by name.
        samples: of training before.
        away: entries of streams that are left out since.
        twins: see :func:`~stoker.order.mixture.stream_quotas.twin_numbers`.
        position: in the epoch.
        passed: see :class:`~stoker.order.mixture.reached.Reached`; by name.
        appended, rest: see :meth:`~stoker.order.capabilities.StreamHistory.restarted`.
    """

    epoch: int = 0
    consumed: Mapping[str, int] = MappingProxyType({})
    samples: int = 0
    away: Sequence[dict[str, Any]] = ()
    twins: Mapping[str, int] = MappingProxyType({})
    position: int = 0
    passed: Mapping[str, Any] = MappingProxyType({})
    appended: Mapping[str, Sequence[Any]] = MappingProxyType({})
    rest: Mapping[str, int] = MappingProxyType({})


def _restart(origin: Any) -> _Restart:
    """The point of which a state tells.

    Raises:
        StateError: it is not what an order tells.
    """
    if not origin:
        return _Restart()
    values = origin if isinstance(origin, Mapping) else {}
    epoch, consumed, samples = values.get("epoch"), values.get("consumed"), values.get("samples")
    away, twins = values.get("away", []), values.get("twins", {})
    position, passed = values.get("position", 0), values.get("passed", {})
    appended, rest = values.get("appended", {}), values.get("rest", {})
    listed = (
        isinstance(passed, Mapping)
        and is_count(position)
        and isinstance(rest, Mapping)
        and all(map(is_count, rest.values()))
        and isinstance(appended, Mapping)
        and all(map(_is_appended, appended.values()))
        and isinstance(twins, Mapping)
        and all(map(is_count, twins.values()))
    )
    listed = listed and isinstance(away, list | tuple)
    listed = listed and all(
        isinstance(one, Mapping)
        and isinstance(one.get("name"), str)
        and is_count(one.get("consumed"))
        and is_count(one.get("twin", 0))
        and _is_appended(one.get("appended", ()))
        for one in away
    )
    listed = listed and isinstance(consumed, Mapping) and passed.keys() | appended.keys() <= consumed.keys()
    if not isinstance(consumed, Mapping) or not all(map(is_count, (epoch, samples, *consumed.values()))) or not listed:
        raise StateError(f"this state should say how much of each stream was consumed, found {origin!r}")
    counts = {str(name): count for name, count in consumed.items()}
    numbers = {str(name): number for name, number in twins.items()}
    for name, value in passed.items():
        Reached.read(counts[name], value)
    for one in away:
        Reached.read(one["consumed"], one.get("passed"))
    gone = [dict(one) for one in away]
    return _Restart(
        int(epoch or 0), counts, int(samples or 0), gone, numbers, position, dict(passed), dict(appended), dict(rest)
    )


def _is_appended(value: Any) -> bool:
    """Check the form of a state's list of what a stream was before files were appended."""
    return isinstance(value, list | tuple) and all(
        isinstance(one, Mapping) and is_count(one.get("consumed")) for one in value
    )


def is_count(value: Any) -> bool:
    """Whether a value of a state is a count, such as one of samples."""
    return type(value) is int and 0 <= value < 1 << 62


_PARTIAL: Final = ("samples", "batch_size", "world_size", "ranks_per_node")
_NO_STATE: Final = "this is no state of a StreamingDataset: it has no version"


def _check_kind(state: Mapping[str, Any]) -> None:
    if not isinstance(state, Mapping):
        raise StateError(f"a state is a dict, got {type(state).__name__}")
    if "version" in state and state["version"] != (PACKED_VERSION if "packed" in state else STATE_VERSION):
        raise StateError(f"state version {state['version']!r} is unknown; this is stoker with version {STATE_VERSION}")


def _fields(
    state: Mapping[str, Any],
) -> tuple[dict[str, dict[str, Any]], int, int, tuple[int, ...]]:
    """A state's settings, epoch and position, and the numbers of its ``partial`` batch."""
    theirs = _described(state)
    try:
        epoch, position = state["epoch"], state["position"]
        partial = state.get("partial")
        inside = () if partial is None else tuple(partial[key] for key in _PARTIAL)
        numbers = [epoch, position, *inside]
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise _incomplete(error) from None
    if not all(type(number) is int and 0 <= number < 1 << 62 for number in numbers):
        raise StateError(f"this state's epoch and position must be integers from 0, got {epoch!r} and {position!r}")
    consumed = state.get("consumed", {})
    if not isinstance(consumed, Mapping) or not all(map(is_count, consumed.values())):
        raise StateError(
            f"this state's 'consumed' should say how many samples of each stream were consumed, found {consumed!r}"
        )
    return theirs, epoch, position, inside


def _described(state: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The order and the streams of a state."""
    try:
        found = {"order": dict(state["order"]), "streams": {n: dict(s) for n, s in dict(state["streams"]).items()}}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _incomplete(error) from None
    listed = found["order"].get("streams", [])
    if not isinstance(listed, list | tuple) or not all(isinstance(n, str) and n in found["streams"] for n in listed):
        raise StateError(f"this state's order should list its streams by their names, found {listed!r}")
    return found


def _compare(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> tuple[list[str], bool]:
    """Differences between a state and the order at hand, a sentence each, and whether only streams and weights differ."""
    said: list[str] = []
    their_streams, our_streams = theirs["streams"], ours["streams"]
    gone = sorted(their_streams.keys() - our_streams.keys())
    new = sorted(our_streams.keys() - their_streams.keys())
    if len(their_streams) == len(our_streams) == len(gone) == 1:
        # One stream each: what it is called does not matter.
        (theirs_only,), (ours_only,) = their_streams.values(), our_streams.values()
        their_streams, our_streams, gone, new = {"": theirs_only}, {"": ours_only}, [], []
    for name in sorted(their_streams.keys() & our_streams.keys()):
        it, its = their_streams[name], our_streams[name]
        if it.get("fingerprint") != its.get("fingerprint"):
            which = f"stream {name!r}" if name else "its stream"
            said.append(
                f"{which} belongs to another dataset (fingerprint {it.get('fingerprint')}, this one has "
                f"{its.get('fingerprint')}): its shards differ in number, size or content"
                + _other_version(it.get("snapshot"), its.get("snapshot"))
            )
        elif _written_anew(it, its):
            said.append(
                f"{f'stream {name!r}' if name else 'its stream'} was written anew since: shards of the same names "
                "and sizes have other hashes"
            )
        else:
            before, now = ({key: one[key] for key in one if key not in _SAME_CONTENT} for one in (it, its))
            said += _differences(before, now, f"{name}." if name else "")
    said += [f"stream {name!r} is gone" for name in gone] + [f"stream {name!r} is new" for name in new]
    several = max(len(their_streams), len(our_streams)) > 1
    streams_differ = bool(said) and several and not _beside_streams(theirs["order"], ours["order"])
    their_order, our_order = dict(theirs["order"]), dict(ours["order"])
    partition = their_order.get("partition")
    if isinstance(partition, Mapping) and "nulls" in (our_order.get("partition") or {}):
        their_order["partition"] = {"nulls": "error", **partition}  # which states of earlier versions do not say
    listed, lists = their_order.pop("streams", None), our_order.pop("streams", None)
    if not gone and not new and listed != lists:
        said.append(f"the streams were listed as {_listed(listed)} and are listed as {_listed(lists)}")
    said += _differences(their_order, our_order, "")
    return said, streams_differ


def _other_version(theirs: Any, ours: Any) -> str:
    """The versions of a table, where these differ; says to open that of the state."""
    if not isinstance(theirs, str) or theirs == ours:
        return ""
    return f". It was taken with {theirs}, and this is {ours}: open that version to go on"


def _written_anew(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> bool:
    """Whether a hash that both know of all files tells that the content is another."""
    before, now = theirs.get("content", {}), ours.get("content", {})
    if not isinstance(before, Mapping):
        raise StateError(f"in this state a dataset's 'content' should be a dict of hashes, found {before!r}")
    return any(before[name] != now[name] for name in before.keys() & now.keys())


def _beside_streams(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> list[str]:
    """Differences in settings that have nothing to do with which streams there are, and how much of each."""
    free = {"epoch_size", "schedule", "streams"}
    if not ("batching_method" in theirs and "batching_method" in ours):
        free.add("batching_method")  # a stream alone has none
    before, now = ({name: value for name, value in order.items() if name not in free} for order in (theirs, ours))
    return list(_differences(before, now, ""))


def _differences(theirs: Any, ours: Any, where: str) -> Iterator[str]:
    """Each value that differs, as a sentence."""
    if isinstance(theirs, Mapping) and isinstance(ours, Mapping):
        for name in sorted(theirs.keys() | ours.keys(), key=str):
            yield from _differences(theirs.get(name), ours.get(name), f"{where}{name}.")
    elif theirs != ours and _plain(theirs) != _plain(ours):
        yield f"{where.removesuffix('.')} was {theirs!r} and is {ours!r}"


def _same(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> bool:
    """Whether a stream has the samples that it had, in their order; only how many an epoch has may differ."""
    ours = cut_alike(ours, theirs)
    if _written_anew(theirs, ours) or is_rewritten(theirs, ours):
        return False
    return all(_plain(ours.get(of)) == _plain(theirs.get(of)) for of in _SAME_ORDER)


def _names_here(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> dict[str, str]:
    """Names of a state's streams to those that they have here; of one stream each, what it is called does not matter."""
    before, now = theirs["streams"], ours["streams"]
    if len(before) == len(now) == 1:
        return {next(iter(before)): next(iter(now))}
    return {name: name for name in before if name in now}


def _before(
    sample_order: SampleOrder, name: str, ours: Mapping[str, Any], theirs: Mapping[str, Any]
) -> Mapping[str, Any] | None:
    """The description of a stream before files were appended to it, if a state has that one.

    Args:
        sample_order: the order at hand.
        name: of the stream there.
        ours: its description there.
        theirs: that in the state.
    """
    if not isinstance(sample_order, StreamHistory) or not _has_more(ours, theirs):
        return None
    for about in sample_order.first_shards(name, theirs["samples"]):
        told = cut_alike(about, theirs)
        if told["fingerprint"] == theirs.get("fingerprint") and not _written_anew(theirs, told):
            return None if is_rewritten(theirs, told) else about
    return None


def _has_more(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> bool:
    """Check whether a stream has more samples than in a state, with the same ``subset=``."""
    samples: Any = theirs.get("samples")
    return (
        is_count(samples)
        and 0 < samples < ours["samples"]
        and _plain(ours.get("subset")) == _plain(theirs.get("subset"))
    )


def _not_behind(name: str, ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> StateError:
    """The error for a stream with more samples than before of which the first are others, or may be."""
    same = f" If the old samples are unchanged, remove state['streams'][{theirs['name']!r}][{VERSIONS!r}]."
    return StateError(
        f"stream {name!r} has {ours['samples']} samples now. It had {theirs['samples']} when this state was saved, and they "
        "are not provably the first of them: an old file was changed, a new file sorts before an old one, or an index "
        "without hashes was rewritten. Give new files names that sort after the old ones, or read them as a separate stream."
        f"{same if VERSIONS in theirs else ''} To start the stream over, give it another name="
    )


def _appended_to(theirs: Mapping[str, Any], ours: Mapping[str, Any], sample_order: SampleOrder) -> list[str]:
    """Streams to which files were appended, by their names here."""
    pairs = [(mine, ours["streams"][mine], theirs["streams"][name]) for name, mine in _names_here(theirs, ours).items()]
    return [mine for mine, its, it in pairs if _before(sample_order, mine, its, it) is not None]


def _listed(names: Any) -> str:
    return ", ".join(map(str, names)) if isinstance(names, list | tuple) else repr(names)


def _plain(value: Any) -> Any:
    """As JSON has it: tuples are lists."""
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
