"""Judges a run's results by the rules of MLPerf Storage. Numbers of rules are those of its Rules.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from stoker.display import counted
from stoker.units import GIB
from stoker_bench.mlperf.rules import (
    CHECKPOINTS,
    GROUPS,
    LEAST_PER_HOST,
    MEMORIES,
    RANKS,
    STEPS,
    SUBSET_RANKS,
    Edition,
    MlperfDivision,
    changes,
    checkpoint_model,
    demanded,
    dlio_name,
    named_rules,
    published,
)
from stoker_bench.settings.workload import Workload


class Broken(NamedTuple):
    """A rule that is broken.

    Attributes:
        rule: its name.
        reason: the value in the results, the value that the rule wants, and the rule's number.
    """

    rule: str
    reason: str


@dataclass(frozen=True, slots=True)
class Case:
    """A run, and the rules that decide on it.

    Attributes:
        result: the content of ``results.json``.
        workload: the settings of the run.
        edition, division: they name the rules.
    """

    result: Mapping[str, Any]
    workload: Workload
    edition: Edition
    division: MlperfDivision

    @property
    def rules(self) -> str:
        """The name of the rules in a sentence."""
        return f"MLPerf Storage {self.edition.name} {self.division}"

    @property
    def trained(self) -> list[Mapping[str, Any]]:
        """Epochs of training."""
        return [epoch for epoch in self.result["epochs"] if epoch["kind"] == "train"]

    @property
    def checkpoints(self) -> Mapping[str, Any] | None:
        """Checkpoints of the stage of that name; ``None`` where there were none."""
        found: Mapping[str, Any] | None = self.result["checkpoint"]
        if found is None or not (self.workload.checkpoint.writes or self.workload.checkpoint.reads):
            return None
        return found


def mlperf_findings(result: Mapping[str, Any], workload: Workload) -> Iterator[tuple[str, bool, str]]:
    """Judge a run by the rules that ``metric.rules`` names.

    Yields:
        For each broken rule its name, ``True`` as it makes the run invalid, and the reason. Nothing where ``metric.rules`` is
        ``stoker``.

    Raises:
        ConfigError: ``metric.rules`` names no rules.
    """
    if workload.metric.rules == "stoker":
        return
    case = Case(result, workload, *named_rules(workload.metric.rules))
    for rule in _RULES:
        for broken in rule(case):
            yield f"mlperf {broken.rule}", True, broken.reason


def foreseen_findings(workload: Workload) -> Iterator[str]:
    """The rules on workloads and parameters that a run will break, by its settings alone."""
    if workload.metric.rules != "stoker":
        result: dict[str, Any] = {"epochs": [{"kind": "train"}] if "train" in workload.stages else []}
        result["checkpoint"] = {} if "checkpoint" in workload.stages else None
        for one in _workload(Case(result, workload, *named_rules(workload.metric.rules))):
            yield one.reason


def _workload(case: Case) -> Iterator[Broken]:
    if not case.trained and case.checkpoints is None:
        if set(case.workload.stages) != {"generate"}:
            yield Broken(
                "workload",
                f"neither training nor checkpoints were measured; stoker knows the rules of {case.rules} for these alone",
            )
        return
    found = published(case.workload, case.edition)
    if found is None:
        known = ", ".join((*case.edition.utilization, *RANKS))
        yield Broken(
            "workload",
            f"{case.workload.name} ({case.workload.accelerator}) is not a workload of {case.rules}, which has {known}, on "
            f"{' and '.join(case.edition.accelerators)} (2.1.11, 2.1.21)",
        )
        return
    name, original = found
    for change in changes(case.workload, original):
        if change.breaks(case.division):
            where = "3.6.3" if case.division == "open" else "3.6.2"
            theirs = dlio_name(change.path)
            known = "" if theirs == change.path else f" (DLIO's {theirs})"
            yield Broken(
                "parameters",
                f"{change.path}{known} is {change.seen}; {case.rules} wants {change.wanted}, as {name} has it "
                f"({where if case.trained else '4.6.3'})",
            )


def _data(case: Case) -> Iterator[Broken]:
    if not case.trained:
        return
    memory = _memory(case.result)
    if not memory:
        return
    ranks, hosts = case.result["world"]["ranks"], len(memory)
    demand = demanded(case.workload, ranks, hosts, -(-sum(memory.values()) // hosts))
    dataset = case.workload.dataset
    if not demand.enough:
        why = (
            f"{STEPS} steps of {case.workload.reader.batch_size} samples on {ranks} accelerators"
            if demand.decides == "steps"
            else f"{MEMORIES} times the {sum(memory.values()) / GIB:.4g} GiB of memory of {hosts} host"
            f"{'s' if hosts > 1 else ''}"
        )
        yield Broken(
            "data set",
            f"{dataset.files} files are trained on; {case.rules} wants {demand.files} at least, for {why} (3.1.2): "
            f"dataset.files={demand.files}",
        )
    fewest = min((steps for epoch in case.trained for steps in epoch["steps"]), default=0)
    if fewest < STEPS:
        yield Broken("steps", f"an epoch has {fewest} steps; {case.rules} wants {STEPS} at least (3.1.2)")


def _runs(case: Case) -> Iterator[Broken]:
    if not case.trained:
        return
    least, most = case.edition.runs
    runs = len([one for one in case.result["repeats"] if one["train"] is not None])
    if not least <= runs <= most:
        wanted = str(least) if least == most else f"{least} or {most}"
        yield Broken(
            "runs",
            f"the training was run {runs} time{'s' if runs != 1 else ''}; {case.rules} wants {wanted} runs one after the "
            f"other, of which the first of {most} is a warm-up (2.1.17): train.repeats={most}",
        )


def _utilization(case: Case) -> Iterator[Broken]:
    least = case.edition.utilization.get(case.workload.name)
    if least is None:
        return
    for one in case.result["repeats"]:
        for name, kind in (("au", "accelerator utilization"), ("au_nominal", "nominal utilization")):
            au = ((one["train"] or {}).get(name) or {}).get("mean")
            if au is not None and au < least:
                yield Broken(
                    "utilization",
                    f"run {one['repeat'] + 1} has {'an' if name == 'au' else 'a'} {kind} of {au:.2%}; {case.rules} wants "
                    f"{least:.0%} at least in each (3.3.2)",
                )
                return


def _hosts(case: Case) -> Iterator[Broken]:
    counts = Counter(rank["host"] for rank in case.result["ranks"])
    if len(set(counts.values())) > 1:
        seen = ", ".join(f"{host} {count}" for host, count in sorted(counts.items()))
        yield Broken(
            "hosts",
            f"hosts have different numbers of accelerators ({seen}); {case.rules} wants the same on each (3.3.6)",
        )
    if case.checkpoints is not None and case.division == "closed" and counts:
        fewest = min(counts.values())
        if fewest < LEAST_PER_HOST:
            yield Broken(
                "hosts", f"a host has {fewest} accelerators; {case.rules} wants {LEAST_PER_HOST} at least (4.6.2)"
            )


def _file_systems(case: Case) -> Iterator[Broken]:
    if not case.trained and case.checkpoints is None:
        return
    volumes = case.result["storage"]["volumes"]
    results = volumes["results"]
    data = volumes["checkpoints"] or volumes["data"] if case.checkpoints is not None else volumes["data"]
    if results is not None and data is not None and _same_volume(data, results):
        yield Broken(
            "file systems",
            f"results are written to the file system that is measured, {data['mount'] or data['device']}; {case.rules} wants "
            "them on another (3.4.2, 4.4.2): --results",
        )


def _same_volume(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two of ``storage.volumes`` are one file system."""
    # Subvolumes of one device have different numbers.
    same_device = one["device"].startswith("/") and one["device"] == other["device"]
    return bool(one["number"] == other["number"] or same_device)


def _checkpoints(case: Case) -> Iterator[Broken]:
    found, model = case.checkpoints, checkpoint_model(case.workload.name)
    if found is None or model is None:
        return
    saves, loads = (
        sum(one["complete"] and one["place"] == "stage" for one in found[kind]) for kind in ("saves", "loads")
    )
    pairs = {(CHECKPOINTS, CHECKPOINTS), (CHECKPOINTS, 0), (0, CHECKPOINTS)}
    if case.division == "closed" and (saves, loads) not in pairs:
        yield Broken(
            "checkpoints",
            f"{saves} checkpoints were saved and {loads} loaded; {case.rules} wants {CHECKPOINTS} and {CHECKPOINTS}, in one "
            "run or in one run each (4.7.1)",
        )
    ranks = found["layout"]["ranks"]
    whole = RANKS[model]
    if case.division == "closed":
        subset = model in case.edition.subsets and ranks == SUBSET_RANKS
        if ranks != whole and not subset:
            wanted = f"{whole}, or {SUBSET_RANKS} for a subset" if model in case.edition.subsets else str(whole)
            yield Broken(
                "ranks",
                f"{counted(ranks, 'rank')} saved the checkpoint of {model}; {case.rules} wants {wanted} (4.6.1, 4.3.5)",
            )
    elif ranks % GROUPS[model]:
        yield Broken(
            "ranks",
            f"{counted(ranks, 'rank')} saved the checkpoint of {model}; {case.rules} wants a multiple of "
            f"{GROUPS[model]} (4.6.4)",
        )
    memory = case.edition.accelerators.get(case.workload.accelerator)
    size = found["layout"]["bytes"] / GIB
    if memory is not None and size > memory * ranks:
        yield Broken(
            "accelerator memory",
            f"{ranks} accelerators of {memory} GB hold less than the {size:.5g} GiB of the checkpoint (4.3.4)",
        )


def _memory(result: Mapping[str, Any]) -> dict[str, int]:
    return {rank["host"]: rank["memory_bytes"] for rank in result["ranks"]}


_RULES: Final[tuple[Callable[[Case], Iterator[Broken]], ...]] = (
    _workload,
    _data,
    _runs,
    _utilization,
    _hosts,
    _file_systems,
    _checkpoints,
)
