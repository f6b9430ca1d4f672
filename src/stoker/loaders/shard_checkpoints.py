"""Methods of a ``StreamingShardLoader``: of its checkpoints, and of work that is planned or leased."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stoker.arguments import checked
from stoker.coordination import EpochProgress, WorkerHealth
from stoker.errors import ConfigError, StateError
from stoker.order.global_batches import WorkerRemainder
from stoker.pipeline.state.checkpoint import Checkpoint, CheckpointFolder
from stoker.pipeline.workers.config import StreamingConfig
from stoker.pipeline.workers.ranges.leased import LeasedSource
from stoker.pipeline.workers.ranges.planned import PlannedSource
from stoker.pipeline.workers.ranges.range_source import RestoreRequest
from stoker.pipeline.workers.worker_reader import WorkerReader


class ShardWork:
    """Base of a shard loader: its plan, what its coordinator knows of all workers, and its checkpoints."""

    _folder: CheckpointFolder | None
    """Where checkpoints are written; ``None``: nowhere."""
    _saved_at: int
    """Samples that had been delivered when one was last written."""
    _read_ahead: bool
    """Whether items are asked for ahead of training."""

    @property
    def config(self) -> StreamingConfig:
        """The settings."""
        raise NotImplementedError

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
        first. A sample that replaces another has the position of that, and those that are made of one have that of it."""
        return self._leased("last_positions").last_positions

    def progress(self) -> EpochProgress:
        """The epoch's progress, of all workers together, including samples that were delivered again."""
        return self._leased("progress").take_part().progress()

    def health(self) -> list[WorkerHealth]:
        """The state of all workers, in rank order."""
        return self._leased("health").take_part().health()

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

    # -- checkpoints -----------------------------------------------------------------------------------------------

    def get_checkpoint(self) -> Checkpoint:
        """The state to resume from, in which all that was delivered counts as done. Save it with the rest of the job's state.

        Of leased work it is that of all workers: what is committed. This worker's delivered samples are committed first, but
        not where commits are explicit; so the thread that takes the samples must call it.
        """
        self._worker.source.settle()
        return self._worker.checkpoint()

    def restore_from_checkpoint(
        self,
        checkpoint: Checkpoint | Mapping[str, Any],
        *,
        any_rank: bool = False,
        rollback: bool = False,
        attempt: int = 0,
    ) -> None:
        """Resume where a checkpoint was taken; what was read ahead is dropped.

        :meth:`next` and the next iteration begin there; a ``for`` loop that is running ends with a ``StateError``.

        Args:
            checkpoint: of :meth:`get_checkpoint`, or its dict.
            any_rank: take it although it is another rank's, or of another world: the ranks were in step when it was taken.
            rollback: leased work: undo commits that the coordinator has and the checkpoint lacks.
            attempt: leased work: another number each time that a run goes back to the same checkpoint.

        Raises:
            StateError: it belongs to another dataset, order, partition, rank or world; says what differs.
            StaleCheckpointError: the coordinator is further on, and ``rollback`` is not set.
        """
        if not isinstance(checkpoint, Checkpoint):
            checkpoint = Checkpoint.from_dict(checkpoint, "this checkpoint")
        self._worker.restore(RestoreRequest(checkpoint, rollback, attempt), any_rank=any_rank)
        self._saved_at = 0

    def save_checkpoint(self) -> Checkpoint:
        """Write :meth:`get_checkpoint` to the config's ``checkpoint_url`` now; also returns it.

        Raises:
            StorageError: it can not be written.
        """
        folder = self._checkpoints()
        checkpoint = self.get_checkpoint()
        folder.save(checkpoint)
        self._saved_at = self._worker.delivered
        return checkpoint

    @checked
    def restore_latest(self, *, rank: int | None = None) -> Checkpoint | None:
        """Resume from the last checkpoint below ``checkpoint_url``.

        Args:
            rank: whose. Default: this worker's own; but rank 0's where ranks are in step (``"pad"``, ``"drop"``, ``"join"``),
                so that all resume from the same one, whatever each had written when they were stopped.

        Returns:
            The checkpoint; ``None`` where there is none, and the run begins.

        Raises:
            StateError: it does not fit; says what differs.
        """
        folder = self._checkpoints()
        in_step = self.in_step
        whose = (0 if in_step else self.config.rank) if rank is None else rank
        found = folder.load(whose)
        if found is not None:
            self.restore_from_checkpoint(found, any_rank=in_step or rank is not None)
        return found

    @property
    def remainder(self) -> WorkerRemainder:
        """The behaviour of ranks that run out before others: ``remainder`` of the config, or of the dataset."""
        return self._worker.source.remainder

    @property
    def in_step(self) -> bool:
        """Whether all ranks take the same number of steps."""
        return self.remainder != "uneven"

    def _checkpoints(self) -> CheckpointFolder:
        if self._folder is None:
            raise ConfigError("checkpoint_url is not set: set it in the config, to a folder for checkpoints")
        return self._folder

    def _save_soon(self) -> None:
        assert self._folder is not None
        self._saved_at = self._worker.delivered
        if self._worker.source.leases:
            self._folder.save_soon(self._worker.checkpoint)  # the engine is asked on the folder's thread
        else:
            checkpoint = self._worker.checkpoint()
            self._folder.save_soon(lambda: checkpoint)

    def state_dict(self) -> dict[str, Any]:
        """:meth:`get_checkpoint` as a JSON-serialisable dict.

        Raises:
            StateError: the items are asked for ahead of training, so that where training is is not known.
        """
        if self._read_ahead and not self._worker.finished:
            raise StateError(
                "this loader's items are asked for ahead of training, as Lightning does where the length of one of several "
                "loaders is not known, so that where training is is not known: give fit() this loader alone"
            )
        return self.get_checkpoint().as_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """:meth:`restore_from_checkpoint`, of any rank of any world where all ranks are in step."""
        self.restore_from_checkpoint(state, any_rank=self.in_step)
