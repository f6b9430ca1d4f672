"""Methods of a ``StreamingShardLoader`` whose work is planned, or leased by a coordinator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stoker.arguments import checked
from stoker.coordination import EpochProgress, WorkerHealth
from stoker.errors import ConfigError
from stoker.pipeline.workers.ranges.leased import LeasedSource
from stoker.pipeline.workers.ranges.planned import PlannedSource
from stoker.pipeline.workers.worker_reader import WorkerReader


class ShardWork:
    """Base of a shard loader: its plan, and what its coordinator knows of all workers."""

    @property
    def _worker(self) -> WorkerReader:
        raise NotImplementedError

    @checked
    def change_plan(self, weights: Sequence[int], ranks: Sequence[int] | None = None) -> int:
        """Divide global batches anew, from the first one on that no rank can have read ahead. Nothing is recalled.

        All ranks must call it after the same step, with the same numbers: they need not talk, but each must be told.

        Args:
            weights: for each of ``ranks`` an integer from 1, its part of a global batch in proportion.
            ranks: those that take part from then on; default: all. The others get nothing more in this epoch; they can be
                named again after :meth:`reset`, before its first step.

        Returns:
            The position in the epoch from which it holds.

        Raises:
            ConfigError: the config has no ``global_batch_size``; or ranks and weights that make no sense; or nothing of the
                epoch is left that was not read ahead.
        """
        return self._planned("change_plan").change(self._worker.at, weights, ranks)

    def plan(self) -> dict[str, Any]:
        """The plan so far, JSON-serialisable: the same in all ranks, or one of them was told something else."""
        return self._planned("plan").plan(self._worker.at).as_dict()

    def _planned(self, what: str) -> PlannedSource:
        source = self._worker.source
        if not isinstance(source, PlannedSource):
            raise ConfigError(f"{what}: only a config with global_batch_size= has a plan")
        return source

    def commit(self, timeout: float | None = None) -> None:
        """Say that all that was delivered is done, and wait until the coordinator has it. In lockstep: nothing.

        Raises:
            CommitRefusedError: leases were lost, and others have some of it, which must be discarded; names the positions
                (see :meth:`last_positions`) and who has them. All else is committed. With ``commit="explicit"`` it tells of
                all since the last call, and nothing that was leased after a loss is delivered before it has; otherwise of
                what this call was to commit: refused commits in the background are counted in the stats, and logged.
            WaitTimeoutError: it has it not in time.
            EngineError: the coordinator does not answer; names the positions of which it is not known whether they are
                committed. Call it again when the coordinator answers.
        """
        self._worker.source.commit(timeout)

    def last_positions(self) -> Sequence[int]:
        """Positions in the epoch of the sample, or of each sample of the batch, that was delivered last; empty before the
        first. A sample that replaces a bad one (``on_bad_sample="replace"``) has the position of that."""
        return self._leased("last_positions").last_positions

    def progress(self) -> EpochProgress:
        """The epoch's progress, of all workers together, including samples that were delivered again."""
        return self._leased("progress").epoch_progress()

    def health(self) -> list[WorkerHealth]:
        """The state of all workers, in rank order."""
        return self._leased("health").health()

    def assignment(self) -> dict[str, Any]:
        """The committed ranges of the epoch so far, with their ranks: ``Adaptive(base, replay=...)`` runs it again.

        Returns:
            A JSON-serialisable dict: ``entries``, rows whose first two numbers are the positions ``[begin, end)`` and whose
            third is the rank; and what they are of, which a replay compares: ``epoch``, ``world_size`` and ``identity``,
            which has the data set's fingerprint, the order and the settings.
        """
        return self._leased("assignment").assignment().as_dict()

    def _leased(self, what: str) -> LeasedSource:
        source = self._worker.source
        if not isinstance(source, LeasedSource):
            raise ConfigError(f"{what}: only Adaptive has a coordinator that knows of all workers")
        return source
