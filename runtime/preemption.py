"""Who gives way when pages run out: the latest to arrive, by recompute.

A preempted request loses its pages and waits again at the head of the queue, with its answer so
far as part of what it recomputes. What it published stays cached, so it often resumes from there.
"""

from __future__ import annotations

from .kv_cache import KVCache
from .request import Request, Status


def make_room(request: Request, running: dict[str, Request], kv: KVCache) -> list[Request]:
    """Grow ``request`` by preempting later arrivals, itself last; the victims, newest first.

    ``running`` is in order of arrival and loses the victims. The oldest request always succeeds:
    alone it fits the pool.
    """
    victims: list[Request] = []
    while not kv.grow(request):
        victim = next(reversed(running.values()))
        del running[victim.id]
        kv.release(victim)
        victim.status = Status.WAITING
        victim.num_preemptions += 1
        victims.append(victim)
        if victim is request:
            break
    return victims
