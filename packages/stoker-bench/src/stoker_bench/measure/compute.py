"""The accelerator's step: a clock that runs for the step's time, or a real step of a model in torch."""

from __future__ import annotations

import time
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from stoker.cluster import World
from stoker.errors import ConfigError, import_option
from stoker_bench.measure.clock import BenchClock
from stoker_bench.settings.duration import Duration
from stoker_bench.settings.workload import Workload

_AT_ONCE = 4096


class ComputeStep(Protocol):
    """One accelerator."""

    @property
    def spun(self) -> int:
        """Nanoseconds for which a processor was held only to be on time."""

    def begin(self, epoch: int) -> None:
        """Get ready for an epoch; not timed as a step."""

    def __call__(self, step: int, data: Any) -> int:
        """Compute on a batch; returns :func:`time.perf_counter_ns` when done."""

    def drawn(self, count: int) -> NDArray[np.int64] | None:
        """Nanoseconds that the epoch's first ``count`` steps were to take, int64; ``None`` where the work decides that."""


class SimulatedStep(ComputeStep):
    """A clock. The times drawn depend on the seed, the rank and the epoch alone.

    Args:
        duration: of a step.
        seed: of the draws.
        rank: whose steps they are.
    """

    def __init__(self, duration: Duration, seed: int, rank: int) -> None:
        self._duration = duration
        self._seed = (seed, rank)
        self._clock = BenchClock()
        self._random = np.random.default_rng(0)
        self._drawn: list[int] = []

    @property
    def spun(self) -> int:
        return self._clock.spun

    def begin(self, epoch: int) -> None:
        self._random = np.random.default_rng((*(part & 0xFFFFFFFFFFFFFFFF for part in self._seed), epoch))
        self._drawn = []

    def __call__(self, step: int, data: Any) -> int:  # noqa: ARG002
        begun = time.perf_counter_ns()
        while step >= len(self._drawn):
            self._drawn += self._duration.draw(_AT_ONCE, self._random).tolist()
        return self._clock.wait_until(begun + self._drawn[step])

    def drawn(self, count: int) -> NDArray[np.int64]:
        """See :class:`ComputeStep`; of steps that have run."""
        return np.array(self._drawn[:count], np.int64)


class TorchStep(ComputeStep):
    """Forward and backward through two layers, on the numbers of the batch, with an optimizer's step.

    On a GPU the batch goes through pinned memory, array by array. A step ends when the device is done, so that its copy is
    part of the step and does not run beside the one before.

    Args:
        device: ``cpu``, ``cuda:N``; ``cuda`` for that of the rank's number on its host.
        hidden: width of the layers.
        seed: of the model.
        world: this process's rank and world size.
    """

    spun = 0

    def __init__(self, device: str, hidden: int, seed: int, world: World) -> None:
        torch = import_option("torch", "compute.kind: torch needs torch", "stoker[torch]")
        if device == "cuda":
            device = f"cuda:{world.rank % world.local_world_size % max(1, torch.cuda.device_count())}"
        try:
            self._device = torch.device(device)
            torch.zeros(1, device=self._device)
        except (RuntimeError, AssertionError) as error:
            raise ConfigError(
                f"compute.device: {device!r} can not be used here: {str(error).splitlines()[0]}"
            ) from None
        torch.manual_seed(seed)
        self._torch = torch
        self._cuda = self._device.type == "cuda"
        self._copies = self._torch.cuda.Stream(self._device) if self._cuda else None
        self._width = 256
        self._model = torch.nn.Sequential(
            torch.nn.Linear(self._width, hidden), torch.nn.GELU(), torch.nn.Linear(hidden, 1)
        ).to(self._device)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=1e-6)

    def begin(self, epoch: int) -> None:
        """See :class:`ComputeStep`."""

    def __call__(self, step: int, data: Any) -> int:  # noqa: ARG002
        torch = self._torch
        moved = [self._move(one) for one in _arrays(data)]
        if self._copies is not None:
            torch.cuda.current_stream(self._device).wait_stream(self._copies)
        rows = [self._rows(one) for one in moved]
        self._optimizer.zero_grad(set_to_none=True)
        for one in rows:
            self._model(one).square().mean().backward()
        self._optimizer.step()
        if self._cuda:
            torch.cuda.synchronize(self._device)
        return time.perf_counter_ns()

    def drawn(self, count: int) -> None:
        """See :class:`ComputeStep`."""

    def _move(self, values: Any) -> Any:
        torch = self._torch
        tensor = values if isinstance(values, torch.Tensor) else torch.from_numpy(np.ascontiguousarray(values))
        if not self._cuda:
            return tensor
        with torch.cuda.stream(self._copies):
            return (tensor if tensor.is_pinned() else tensor.pin_memory()).to(self._device, non_blocking=True)

    def _rows(self, tensor: Any) -> Any:
        """The numbers in rows of the model's width; what does not fill one is left out, a short batch is repeated."""
        numbers = tensor.reshape(-1)
        if numbers.numel() < self._width:
            numbers = numbers.repeat(self._width // max(1, numbers.numel()) + 1)
        numbers = numbers[: numbers.numel() // self._width * self._width]
        return self._torch.nan_to_num(numbers.to(self._torch.float32)).reshape(-1, self._width)


def _arrays(data: Any) -> list[Any]:
    """The numeric arrays of a batch, in order."""
    if isinstance(data, dict):
        return [one for value in data.values() for one in _arrays(value)]
    if isinstance(data, list | tuple):
        return [one for value in data for one in _arrays(value)]
    kind = getattr(getattr(data, "dtype", None), "kind", None)  # NumPy's; torch's dtypes have none
    if kind in {"b", "i", "u", "f"} or (kind is None and hasattr(data, "is_pinned")):
        return [data] if data.size != 0 else []
    return []


def make_step(workload: Workload, world: World, *, evaluation: bool = False) -> ComputeStep:
    """The accelerator of a rank.

    Raises:
        ConfigError: the device can not be used.
        MissingPackageError: torch is asked for, and not there.
    """
    compute = workload.compute
    if compute.kind == "torch":
        return TorchStep(compute.device, compute.hidden, workload.train.seed, world)
    duration = workload.evaluation.seconds if evaluation else compute.seconds
    return SimulatedStep(duration, workload.train.seed + evaluation, world.rank)
