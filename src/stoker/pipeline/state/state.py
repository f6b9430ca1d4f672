"""The state dict of a run: written from its position, and checked against the dataset and settings that resume it."""

from __future__ import annotations

import logging
import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from stoker.cluster import LoaderWorker
from stoker.errors import ConfigError, StateError
from stoker.integers import is_count
from stoker.order.capabilities import (
    StreamHistory,
    consumed_samples,
    epoch_ended,
    in_epoch,
    mosaicml_position,
    mosaicml_state,
    origin_of,
    read_start,
    stream_urls,
    with_epoch_start,
    with_weights_of,
)
from stoker.order.mixture.reached import RunOrigin, RunProgress
from stoker.order.mixture.schedule import Schedule
from stoker.order.mixture.stream_quotas import twin_numbers
from stoker.order.sample_order import DataRank, EpochPosition, SampleOrder
from stoker.pipeline.state.packed import PACKED_VERSION, cut_alike, pack_state, unpack_state
from stoker.storage.versions import VERSIONS, check_versions, is_rewritten

logger = logging.getLogger(__name__)

STATE_VERSION: Final = 2
_SAME_ORDER: Final = ("fingerprint", "subset", "block_size")
"""Entries of a stream in a state that decide the order of its samples."""
_SAME_CONTENT: Final = ("content", VERSIONS, "snapshot")
"""Entries that tell, in addition, whether the samples are the same ones."""
_KEEP_COUNTS: Final = ("map(", "random_map(", "batch_map(", "rename(", "select(", "enumerate(", "zip(")
"""Steps of a chain that make one sample of each; those of other kinds may decide which samples there are."""
_MOST_AWAY: Final = 256
"""Streams that were left out of which states remember how far they had got: about 150 bytes each."""
_WORKER: Final = ("number", "count", "batches", "samples")
_PARTIAL: Final = ("samples", "batch_size", "world_size", "ranks_per_node")


# -- the form of a state -----------------------------------------------------------------------------------------------


def _are_described(about: Any) -> bool:
    return all(isinstance(one, Mapping) and isinstance(one.get("content", {}), Mapping) for one in about)


_FORMS: Final[dict[str, tuple[str, Callable[[Any], bool]]]] = {
    "epoch": ("be an integer from 0", is_count),
    "position": ("be an integer from 0", is_count),
    "order": ("be a dict of settings", lambda value: isinstance(value, Mapping)),
    "streams": (
        "have a dict for each stream, whose 'content' should be a dict of hashes",
        lambda value: _are_described(value.values()),
    ),
    "partial": (
        f"have counts of {', '.join(_PARTIAL)}",
        lambda value: (
            value is None
            or (all(is_count(value[name]) for name in _PARTIAL) and 0 not in (value["batch_size"], value["world_size"]))
        ),
    ),
    "consumed": (
        "say how many samples of each stream were consumed",
        lambda value: all(map(is_count, value.values())),
    ),
    "origin": (
        "say how much of each stream was consumed",
        lambda value: not value or _are_described(value.get("away", ())),
    ),
    "chain": (
        "be a list of steps",
        lambda value: isinstance(value, list | tuple) and all(isinstance(step, str) for step in value),
    ),
    "worker": (
        "have a number, a count, batches and samples",
        lambda value: value is None or all(is_count({"samples": 0, **value}[name]) for name in _WORKER),
    ),
    "others": (
        "say which datasets were joined",
        lambda value: all(isinstance(one, list | tuple) and _are_described(one) for one in value.values()),
    ),
}
"""Of each entry that is compared or read here: what it should be, and whether a value is."""


def _read(state: Mapping[str, Any], *needs: str) -> dict[str, Any]:
    """A state in plain text, of which every entry has its form. One of mosaicml-streaming has no version.

    StateError if it is no state, or a later version's, or damaged. ``state``: as the user gave it. ``needs``: entries that it
    must have. Default: what every state with a version has.
    """
    if not isinstance(state, Mapping):
        raise StateError(f"a state is a dict, got {type(state).__name__}")
    if "version" in state and state["version"] != (PACKED_VERSION if "packed" in state else STATE_VERSION):
        raise StateError(f"state version {state['version']!r} is unknown; this is stoker with version {STATE_VERSION}")
    found = unpack_state(state)
    for name in needs or (("epoch", "position", "order", "streams") if "version" in state else ()):
        if name not in found:
            raise StateError(
                f"this state of a StreamingDataset is incomplete: it lacks {name!r}. Give what state_dict() returned, whole "
                "and as it was"
            )
    for name, (form, fits) in _FORMS.items():
        try:
            is_right = name not in found or fits(found[name])
        except (AttributeError, LookupError, TypeError):
            is_right = False
        if not is_right:
            raise StateError(
                f"this state's {name!r} should {form}, found {reprlib.repr(found[name])}: give what state_dict() returned"
            )
    listed = found.get("order", {}).get("streams", [])
    if not isinstance(listed, list | tuple) or not all(
        isinstance(n, str) and n in found.get("streams", {}) for n in listed
    ):
        raise StateError(f"this state's order should list its streams by their names, found {listed!r}")
    return found


# -- whole states --------------------------------------------------------------------------------------------------------


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
    if origin := origin_of(sample_order).as_dict():
        state["origin"] = origin
    start = with_epoch_start(sample_order, point, data_rank).start
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
    """Check a state against the dataset and settings at hand: the position to resume at, and the sample order.

    The order differs from the given one if the state's run had changed its streams. StateError if it is no state, or belongs
    to another dataset or another order; says exactly what differs. ``what``: how the caller calls the state, for messages.
    """
    saved = _read(state)
    if "version" not in saved:
        return mosaicml_position(sample_order, saved), sample_order
    sample_order = with_weights_of(sample_order, saved)
    try:
        check_same_order(saved, sample_order, what)
    except StateError as error:
        if "packed" not in state:
            raise
        raise StateError(
            f"{error}. stoker.util.unpack_state(state) is the state as plain text, with all streams"
        ) from None
    point = _position(saved, sample_order)
    if point.start is None and point.position and with_epoch_start(sample_order, point, data_rank).start is not None:
        raise StateError(
            f"this {what} has no start of its epoch, on which the order of the rest depends: it is not complete"
        )
    if not in_epoch(sample_order, point):
        raise StateError(
            f"this {what}'s position {point.position} lies beyond the epoch of {sample_order.epoch_size} samples: it was "
            "changed, or is of a dataset that had more; resume with the data and epoch_size= of the run that saved it"
        )
    origin = RunOrigin.read(saved.get("origin"))
    if origin != origin_of(sample_order):
        if not isinstance(sample_order, StreamHistory):
            raise StateError(
                "this state is of a run that changed its streams, which a run in this order can not resume"
            )
        sample_order = sample_order.with_changed_streams(origin)
    if saved.get("partial") is not None:
        samples, *theirs = (saved["partial"][name] for name in _PARTIAL)
        here = [data_rank.batch_size, data_rank.world_size, data_rank.ranks_per_node]
        # Which samples of a batch are a rank's depends on nodes only where the order is mosaicml-streaming's.
        compared = 3 if "like" in saved["order"] else 2
        if theirs[:compared] != here[:compared]:
            raise StateError(
                f"this state was taken inside a batch, after {samples} of its samples, with batch_size {theirs[0]} on "
                f"{theirs[1]} ranks, {theirs[2]} per node; this run has batch_size {here[0]} on {here[1]} ranks, {here[2]} "
                "per node. Take states between batches to resume on another cluster"
            )
        if not samples < data_rank.batch_size:
            raise StateError(
                f"this {what} was taken after {samples} samples of a batch, which here has {data_rank.batch_size}: resume "
                "with the batch_size= of the run that saved it"
            )
        point = replace(point, partial=samples)
    return point, sample_order


def _position(saved: Mapping[str, Any], sample_order: SampleOrder) -> EpochPosition:
    """The position of a state, where it is between batches."""
    # Before "start" had names, its numbers were a list of "terms".
    start = read_start(sample_order, saved["start"] if "start" in saved else saved.get("terms"))
    return EpochPosition(saved["epoch"], saved["position"], start=start)


def read_worker_part(state: Mapping[str, Any], worker: LoaderWorker, data_rank: DataRank) -> tuple[int, int] | None:
    """The part of an epoch that a DataLoader worker has delivered, in the worker's own state (torchdata's loaders save it).

    StateError if it is of another worker, or was taken inside an epoch of another world. Gives whole batches, and samples of
    one more; ``None`` where the state is not that of a worker.
    """
    found = _read(state).get("worker")
    if found is None:
        return None
    number, count, batches, samples = (found.get(name, 0) for name in _WORKER)
    if worker.token is None or (number, count) != (worker.number, worker.count):
        raise StateError(
            f"this is the state of DataLoader worker {number} of {count}, and only that worker can load it. States of "
            "StreamingDataLoader can be loaded with any number of workers"
        )
    # Which samples a worker's batches were depends on the world; states of earlier versions do not say it.
    here = data_rank.world_size, data_rank.batch_size
    theirs = found.get("world_size", here[0]), found.get("batch_size", here[1])
    if (batches or samples) and theirs != here:
        raise StateError(
            f"this state of DataLoader worker {number} was taken inside an epoch on {theirs[0]} ranks with batch_size "
            f"{theirs[1]}; this run has {here[0]} and batch_size {here[1]}. States of StreamingDataLoader, and states "
            "without workers, can be loaded on any number of ranks"
        )
    return batches, samples


def check_same_steps(
    state: Mapping[str, Any],
    chain: Sequence[str],
    others: Mapping[str, Sequence[Mapping[str, Any]]],
    *,
    inside: bool,
) -> None:
    """Compare the steps of the chain that a state names, and the datasets beside its own, with those at hand.

    Another chain is logged. StateError if the state was taken ``inside`` an epoch, and steps that decide which samples there
    are differ: some would come twice, or not at all; or if a join has another dataset now. ``others``: the entries that
    identify the datasets of its zips and joins at hand, by their names.
    """
    saved = _read(state)
    for name, before in saved.get("others", {}).items():
        now = others.get(name, before)  # where it is gone the chains differ, which is told
        same = len(before) == len(now) and all(
            it.get("fingerprint") == its.get("fingerprint") and not _written_anew(it, its)
            for it, its in zip(before, now, strict=True)
        )
        if not same:
            first, second = (", ".join(str(about.get("fingerprint")) for about in one) for one in (before, now))
            raise StateError(
                f"this state's run took columns of {name!r} from another dataset (fingerprint {first}, this one has {second}"
                f"{'' if first != second else ', and was rewritten since'}): join the dataset that it was taken with, or "
                "give the new one another name="
            )
    theirs = list(saved.get("chain", []))
    if theirs == list(chain):
        return
    told = f"{'.'.join(theirs) or 'no chain'}, and here it is {'.'.join(chain) or 'none'}"
    if inside and list(filter(_changes_counts, theirs)) != list(filter(_changes_counts, chain)):
        raise StateError(
            f"this state was taken inside an epoch whose chain was {told}: some samples would come twice or not at all. "
            "Give the dataset the same filter() and flat_map() steps, or load a state from the end of an epoch"
        )
    logger.warning("resuming with another chain: samples were made by %s", told)


def _changes_counts(step: str) -> bool:
    if step.startswith("join("):
        return step.endswith("missing='leave_out')")
    return not step.startswith(_KEEP_COUNTS)


def check_same_order(state: Mapping[str, Any], sample_order: SampleOrder, what: str) -> None:
    """Check what a state says of streams and order, as :meth:`SampleOrder.as_dict` gave it, against those at hand.

    StateError if they differ; says in what.
    """
    theirs, ours = _read(state, "order", "streams"), sample_order.as_dict()
    ours = {**ours, "streams": {n: cut_alike(s, theirs["streams"].get(n, {})) for n, s in ours["streams"].items()}}
    said, changed = _compare(theirs, ours)
    if said:
        remedy = "Use the data and the settings with which it was taken"
        appended = [
            mine
            for name, mine in _names_here(theirs, ours).items()
            if _before(sample_order, mine, ours["streams"][mine], theirs["streams"][name]) is not None
        ]
        if appended:
            said.append(f"files were appended to {', '.join(map(repr, appended))} since, after the old ones")
        if (changed or appended) and what == "state":
            remedy += ", or call load_state_dict(state, change_streams=True) to change streams and weights"
        saved = what.partition(".")[0]
        raise StateError(f"this {saved} does not match the data or order of this run: {'; '.join(said)}. {remedy}")
    check_versions(theirs, ours, stream_urls(sample_order), what)


def same_so_far(state: Mapping[str, Any], sample_order: SampleOrder) -> bool:
    """Whether a state's run had the weights that this order has up to where the state was taken, and others from there on."""
    saved = _read(state)
    if "version" not in saved or not isinstance(sample_order, StreamHistory):
        return False
    sample_order = sample_order.with_weights_of(saved)
    ours, before = sample_order.as_dict(), saved["order"].get("schedule")
    now, size = ours["order"].get("schedule"), ours["order"]["epoch_size"]
    if not isinstance(before, Mapping) or now is None or _plain(before) == _plain(now):
        return False
    same = {name: ours["order"][name] for name in ("schedule", "weights", "given") if name in ours["order"]}
    if _compare({**saved, "order": {**saved["order"], **same}}, ours)[0]:
        return False
    samples = _samples_before(saved, RunOrigin.read(saved.get("origin")), size)
    try:
        names = ours["order"].get("streams", list(ours["streams"]))
        return Schedule.from_dict(before).same_until(Schedule.from_dict(now), names, size, samples)
    except (ConfigError, LookupError, TypeError, ValueError, AttributeError):
        return False


def _samples_before(saved: Mapping[str, Any], origin: RunOrigin, size: int) -> int:
    """Samples of training before a state, where epochs have ``size`` of them."""
    samples: int = origin.samples + (saved["epoch"] - origin.epoch) * size + saved["position"] - origin.position
    return samples


# -- streams that change ---------------------------------------------------------------------------------------------------


def read_changed(
    state: Mapping[str, Any], sample_order: SampleOrder, level: int = logging.WARNING
) -> tuple[EpochPosition, SampleOrder]:
    """Go on with other streams where a state was taken.

    StateError if more than the streams and their weights differs. Gives the position, and a sample order in which each stream
    continues after the samples that the state's run delivered. ``level``: at which that is logged.
    """
    saved, ours = _read(state), sample_order.as_dict()
    if "version" not in saved:
        raise StateError("this is not a state of a StreamingDataset: it has no version")
    if said := _beside_streams(saved["order"], ours["order"]):
        raise StateError(
            f"change_streams=True changes streams and weights, not the rest of the order: {'; '.join(said)}. Set that as it "
            "was; what was left to its default may have another with other streams"
        )
    origin = RunOrigin.read(saved.get("origin"))
    found = _reached(saved, origin, sample_order)
    if found is None or not isinstance(sample_order, StreamHistory):
        begun = saved["position"] or saved.get("partial")
        begin = EpochPosition(saved["epoch"] + 1 if begun else saved["epoch"])
        logger.warning("resuming with other streams: epoch %d begins", begin.epoch)
        return begin, sample_order
    here = _names_here(saved, ours)
    continued, grown, away = _continued(saved, ours, origin, found, sample_order)
    size: Any = saved["order"].get("epoch_size")
    if not is_count(size):
        raise StateError(f"this state's order should have its epoch_size, found {size!r}")
    rest: dict[str, int] = {}
    if grown and len(here) == len(saved["streams"]) == len(ours["streams"]) > 1 and "schedule" not in ours["order"]:
        # All that was left of the epoch, and what was appended, and no shares of both.
        for name, mine in here.items():
            rest[mine] = found.left[name] + ours["streams"][mine]["choose"] - saved["streams"][name]["choose"]
        rest = rest if min(rest.values()) >= 0 else {}
    listed, twins = _fingerprints(ours), {name: one["twin"] for name, one in continued.items() if "twin" in one}
    changed = sample_order.with_changed_streams(
        RunOrigin(
            saved["epoch"],
            {name: one["consumed"] for name, one in continued.items()},
            _samples_before(saved, origin, size) + found.had - saved["position"],
            away,
            {} if twin_numbers(listed, {}) == twin_numbers(listed, twins) else twins,
            found.had,
            {name: one["passed"] for name, one in continued.items() if one.get("passed")},
            {name: one["appended"] for name, one in continued.items() if one.get("appended")},
            rest,
        )
    )
    now = origin_of(changed)
    logger.log(
        level,
        "resuming with other streams: epoch %d %s; %s continue where they were%s%s",
        now.epoch,
        f"continues at position {now.position}" if now.position else "begins",
        ", ".join(sorted(continued)) or "none",
        "".join(f", {name} begins" for name in sorted(ours["streams"].keys() - continued.keys())),
        f"; files were appended to {', '.join(grown)}" if grown else "",
    )
    return EpochPosition(now.epoch, now.position), changed


def _reached(saved: Mapping[str, Any], origin: RunOrigin, sample_order: SampleOrder) -> RunProgress | None:
    """The progress of the state's run in its epoch and streams; ``None`` where epochs do not continue streams."""
    if not isinstance(sample_order, StreamHistory):
        return None
    point, world = _position(saved, sample_order), None
    if (partial := saved.get("partial")) is not None:
        point = replace(point, partial=partial["samples"])
        world = DataRank(0, partial["world_size"], partial["ranks_per_node"], partial["batch_size"])
    try:
        return sample_order.reached(saved, origin, point, world)
    except StateError:
        raise
    except (ConfigError, ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise StateError(
            f"this state does not say what its run had of each stream ({error!r}): give what state_dict() returned, whole "
            "and as it was"
        ) from error


def _continued(
    saved: Mapping[str, Any],
    ours: Mapping[str, Any],
    origin: RunOrigin,
    found: RunProgress,
    sample_order: SampleOrder,
) -> tuple[dict[str, dict[str, Any]], list[str], list[dict[str, Any]]]:
    """Tells the streams that a state knows apart by whether they continue here.

    Gives the entries of those that continue here, by name; names of those to which files were appended; and the entries of
    those that are left out, from which they continue when they come back.
    """
    here, numbers = _names_here(saved, ours), twin_numbers(_fingerprints(saved), origin.twins)
    known = [(str(one["name"]), dict(one)) for one in origin.away]
    for name, reached in found.reached.items():
        about = saved["streams"][name]
        entry = {"name": name, "consumed": reached.count, **reached.as_dict()}
        entry |= {"twin": numbers[name]} if numbers.get(name) else {}
        entry |= {of: about[of] for of in (*_SAME_ORDER, *_SAME_CONTENT, "samples") if about.get(of) is not None}
        entry |= {"appended": origin.appended[name]} if name in origin.appended else {}
        known.append((here.get(name, name), entry))
    continued: dict[str, dict[str, Any]] = {}
    grown: list[str] = []
    away: list[dict[str, Any]] = []
    for name, one in known:
        its = ours["streams"].get(name)
        before = None if its is None else _before(sample_order, name, its, one)
        if its is not None and _same(its, one):
            continued[name] = {"twin": 0, **one}
        elif before is not None:
            grown.append(name)
            told = [*one.get("appended", ())]
            if not told or told[-1]["consumed"] != one["consumed"]:  # else nothing was had in between
                held = {of: one[of] for of in ("samples", "consumed", "passed", "block_size", "twin") if of in one}
                left, choose = found.left.get(one["name"]), saved["streams"].get(one["name"], {}).get("choose")
                inside = left is not None and is_count(choose) and left < choose
                told.append({**held, "fingerprint": before["fingerprint"], "inside": inside})
            continued[name] = {"consumed": one["consumed"], "appended": told}
        elif its is not None and one["name"] in found.reached and _has_more(its, one):
            same = f" If the old samples are unchanged, remove state['streams'][{one['name']!r}][{VERSIONS!r}]."
            raise StateError(
                f"stream {name!r} has {its['samples']} samples now. It had {one['samples']} when this state was saved, and "
                "they are not provably the first of them: an old file was changed, a new file sorts before an old one, or "
                "an index without hashes was rewritten. Give new files names that sort after the old ones, or read them as "
                f"a separate stream.{same if VERSIONS in one else ''} To start the stream over, give it another name="
            )
        elif one["consumed"]:
            away.append(one)
    if len(away) > _MOST_AWAY:
        logger.warning(
            "states remember %d streams that were left out: %s would start over if they came back",
            _MOST_AWAY,
            ", ".join(one["name"] for one in away[:-_MOST_AWAY]),
        )
    return continued, grown, away[-_MOST_AWAY:]


def _fingerprints(told: Mapping[str, Any]) -> dict[str, str]:
    """Fingerprints of an order's streams by name, in the order of the streams."""
    streams = told["streams"]
    return {name: str(streams[name].get("fingerprint", "")) for name in told["order"].get("streams", streams)}


def _names_here(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> dict[str, str]:
    """Names of a state's streams to those that they have here; of one stream each, what it is called does not matter."""
    before, now = theirs["streams"], ours["streams"]
    if len(before) == len(now) == 1:
        return {next(iter(before)): next(iter(now))}
    return {name: name for name in before if name in now}


# -- differences ---------------------------------------------------------------------------------------------------------


def _compare(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> tuple[list[str], bool]:
    """Differences between a state and the order at hand, a sentence each, and whether only streams and weights differ."""
    said: list[str] = []
    names = _names_here(theirs, ours)
    their_order, our_order = dict(theirs["order"]), dict(ours["order"])
    weighed = any(their_order.get(name) != our_order.get(name) for name in ("weights", "given"))
    apart = (*_SAME_CONTENT, "choose") if weighed else _SAME_CONTENT  # how many rows each has follows from the weights
    for name, mine in sorted(names.items()):
        it, its = theirs["streams"][name], ours["streams"][mine]
        which = f"stream {name!r}" if name == mine else "the stream"
        if it.get("fingerprint") != its.get("fingerprint"):
            said.append(
                f"{which} belongs to another dataset (fingerprint {it.get('fingerprint')}, this one has "
                f"{its.get('fingerprint')}): their shards differ in number, size or content"
            )
            snapshot = it.get("snapshot")
            if isinstance(snapshot, str) and snapshot != its.get("snapshot"):
                said[-1] += (
                    f". It was taken with {snapshot}, and this is {its.get('snapshot')}: open that version to resume"
                )
        elif _written_anew(it, its):
            said.append(f"{which} was rewritten since: shards of the same names and sizes have other hashes")
        else:
            before, now = ({key: one[key] for key in one if key not in apart} for one in (it, its))
            said += _differences(before, now, f"{name}." if name == mine else "")
    gone, new = theirs["streams"].keys() - names.keys(), ours["streams"].keys() - names.values()
    said += [f"stream {name!r} is gone" for name in sorted(gone)] + [f"stream {name!r} is new" for name in sorted(new)]
    several = max(len(theirs["streams"]), len(ours["streams"])) > 1
    streams_differ = (bool(said) or weighed) and several and not _beside_streams(their_order, our_order)
    partition = their_order.get("partition")
    if isinstance(partition, Mapping) and "nulls" in (our_order.get("partition") or {}):
        their_order["partition"] = {"nulls": "error", **partition}  # which states of earlier versions do not say
    if their_order.get("weights") != our_order.get("weights"):
        their_order["given"] = our_order["given"] = None  # of which those are
    listed, lists = (", ".join(order.pop("streams", ())) for order in (their_order, our_order))
    if not gone and not new and listed != lists:
        said.append(f"the streams were listed as {listed} and are listed as {lists}")
    said += _differences(their_order, our_order, "")
    return said, streams_differ


def _written_anew(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> bool:
    """Whether a hash that both know of all files tells that the content is another."""
    before, now = theirs.get("content", {}), ours.get("content", {})
    return any(before[name] != now[name] for name in before.keys() & now.keys())


def _beside_streams(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> list[str]:
    """Differences in settings that have nothing to do with which streams there are, and how much of each."""
    free = {"epoch_size", "schedule", "streams", "weights", "given"}
    if not ("batching_method" in theirs and "batching_method" in ours):
        free.add("batching_method")  # a stream alone has none
    before, now = ({name: value for name, value in order.items() if name not in free} for order in (theirs, ours))
    return list(_differences(before, now, ""))


def _differences(theirs: Any, ours: Any, where: str) -> Iterator[str]:
    """Each value that differs, as a sentence."""
    if isinstance(theirs, Mapping) and isinstance(ours, Mapping):
        for name in sorted(theirs.keys() | ours.keys(), key=str):
            yield from _differences(theirs.get(name), ours.get(name), f"{where}{name}.")
    elif _plain(theirs) != _plain(ours):
        yield f"{where.removesuffix('.')} was {theirs!r} and is {ours!r}"


def _same(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> bool:
    """Whether a stream has the samples that it had, in their order; only how many an epoch has may differ."""
    ours = cut_alike(ours, theirs)
    if _written_anew(theirs, ours) or is_rewritten(theirs, ours):
        return False
    return all(_plain(ours.get(of)) == _plain(theirs.get(of)) for of in _SAME_ORDER)


def _before(
    sample_order: SampleOrder, name: str, ours: Mapping[str, Any], theirs: Mapping[str, Any]
) -> Mapping[str, Any] | None:
    """The description of a stream before files were appended to it, if a state has that one.

    ``sample_order``: the order at hand. ``name``: of the stream there. ``ours``: its description there. ``theirs``: that in
    the state.
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


def _plain(value: Any) -> Any:
    """As JSON has it: tuples are lists."""
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
