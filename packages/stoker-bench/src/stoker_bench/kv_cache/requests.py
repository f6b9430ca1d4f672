"""Users and their requests, drawn from a seed: which contexts are written and read, in which order."""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from stoker_bench.settings.workload import KvCacheSettings, UserKind

_PAUSE: Final = (0.8, 1.2)
"""A user's pauses are so many times its own."""
_LEAST: Final = 4
"""A request has at least the fourth part of its user's longest context and answer."""

THERE: Final = (10, 2048)
"""Entries a user, and tokens of each, that are there before the phase ``decode``; as in MLPerf Storage's benchmark."""


@dataclass(frozen=True, slots=True)
class KvUser:
    """A user.

    Attributes:
        kind: of users, by name.
        priority: 3 waits for its answer, 2 less so, 1 is a batch job; for the results alone.
        context: tokens of its longest prompt.
        generate: tokens of its longest answer.
        think_seconds: its mean pause.
    """

    kind: str
    priority: int
    context: int
    generate: int
    think_seconds: float


@dataclass(frozen=True, slots=True)
class KvRequest:
    """A request. Its entry has its number.

    Attributes:
        number: from 0, in the order of arrival.
        arrival: seconds after the begin.
        user: whose.
        tokens: of the context, without a shared prefix.
        generate: tokens of the answer.
        earlier: entries of the conversation's earlier requests.
        decodes: whether it is answered here, and not only prefilled.
        pick: from 0 to 1, for what else there is to choose.
    """

    number: int
    arrival: float
    user: int
    tokens: int
    generate: int
    earlier: tuple[int, ...]
    decodes: bool
    pick: float

    def decode_reads(self, batch: int) -> int:
        """Number of times its entry is read to answer it: at first, and for each ``batch`` tokens."""
        return 1 + max(1, -(-self.generate // batch)) if self.decodes else 0


def draw_users(kinds: tuple[UserKind, ...], users: int, seed: int) -> list[KvUser]:
    """The users of a rank: the same ones that MLPerf Storage's benchmark draws of this seed."""
    draw = random.Random(seed)
    found = []
    for _ in range(users):
        kind = draw.choice(kinds)
        chance = draw.random()
        priority = 3 if chance < 0.15 else 2 if chance < 0.5 else 1
        low, high = kind.think_seconds
        found.append(
            KvUser(
                kind.name, priority, draw.randint(*kind.context), draw.randint(*kind.generate), draw.uniform(low, high)
            )
        )
    return found


def longest_context(settings: KvCacheSettings, ranks: Iterable[int]) -> int:
    """Most tokens that an entry of the users of some ranks may have."""
    if settings.phase == "decode":
        return THERE[1]
    seeds = (settings.seed + rank for rank in ranks)
    return max(user.context for seed in seeds for user in draw_users(settings.kinds, settings.users, seed))


def draw_requests(settings: KvCacheSettings, rank: int) -> Iterator[KvRequest]:
    """The requests of a rank, without end, in the order in which they arrive. The same settings give the same requests."""
    seed = settings.seed + rank
    users = draw_users(settings.kinds, settings.users, seed)
    draws = [random.Random(f"{seed} {user}") for user in range(len(users))]
    spoken: list[tuple[int, ...]] = [()] * len(users)
    waiting = [(user.think_seconds * draws[at].uniform(*_PAUSE), at) for at, user in enumerate(users)]
    heapq.heapify(waiting)
    number = 0
    while True:
        arrival, at = waiting[0]
        user, draw = users[at], draws[at]
        if spoken[at] and (draw.random() >= 1 - settings.conversation_end or len(spoken[at]) >= settings.turns):
            spoken[at] = ()
        context = draw.randint(max(1, user.context // _LEAST), user.context)
        generate = draw.randint(max(1, user.generate // _LEAST), user.generate)
        prefix = draw.choice(settings.prefix_tokens) if draw.random() < settings.prefix_probability else 0
        yield KvRequest(
            number=number,
            arrival=arrival,
            user=at,
            tokens=max(0, context - prefix),
            generate=generate,
            earlier=spoken[at],
            decodes=context < settings.prefill_only_tokens,
            pick=draw.random(),
        )
        spoken[at] += (number,)
        number += 1
        heapq.heapreplace(waiting, (arrival + user.think_seconds * draw.uniform(*_PAUSE), at))
