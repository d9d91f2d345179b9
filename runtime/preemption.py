"""Who gives way when pages run out: the last by rank, by recompute.

A preempted request loses its pages and waits again at the head of the queue, with its answer so
far as part of what it recomputes. What it published stays cached, so it often resumes from there.
"""

from __future__ import annotations

from collections.abc import Callable

from .kv_cache import KVCache
from .request import Request, Status
from .waiting import Rank


def preempt_last(
    running: dict[str, Request], kv: KVCache, rank: Callable[[Request], Rank]
) -> Request:
    """Take pages and place away from the running request that ranks last; it waits again."""
    victim = max(running.values(), key=rank)
    del running[victim.id]
    kv.release(victim)
    victim.status = Status.WAITING
    victim.num_preemptions += 1
    return victim


def make_room(
    request: Request,
    running: dict[str, Request],
    kv: KVCache,
    rank: Callable[[Request], Rank],
) -> list[Request]:
    """Grow ``request`` by preempting those who rank last, itself before anyone who ranks higher.

    ``running`` loses the victims, which are returned. Who ranks first always succeeds: alone it
    fits the pool.
    """
    victims: list[Request] = []
    while request.status is Status.RUNNING and not kv.grow(request):
        victims.append(preempt_last(running, kv, rank))
    return victims
