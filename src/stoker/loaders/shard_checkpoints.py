"""Checkpoints of a ``StreamingShardLoader``: taken, written to a folder, and resumed from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stoker.arguments import checked
from stoker.errors import ConfigError, StateError
from stoker.order.global_batches import WorkerRemainder
from stoker.pipeline.state.checkpoint import Checkpoint, CheckpointFolder
from stoker.pipeline.workers.config import StreamingConfig
from stoker.pipeline.workers.ranges.range_source import RestoreRequest
from stoker.pipeline.workers.worker_reader import WorkerReader


class ShardCheckpoints:
    """Base of a shard loader: its checkpoints."""

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
    def remainder(self) -> WorkerRemainder:
        """The behaviour of ranks that run out before others."""
        raise NotImplementedError

    @property
    def _worker(self) -> WorkerReader:
        raise NotImplementedError

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
    def in_step(self) -> bool:
        """Whether all ranks take the same number of steps."""
        return self.remainder != "uneven"

    def _checkpoints(self) -> CheckpointFolder:
        if self._folder is None:
            raise ConfigError("there is no folder for checkpoints: give the config checkpoint_url=")
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
