"""What only administrators may do."""

from __future__ import annotations

from ..engine import Engine
from .service import Service
from .wire import Client


async def flush_cache(service: Service, client: Client) -> None:
    """POST /flush_cache: forget all prefixes that no answer uses."""
    pages = await service.loaded().thread.call(_flush)
    await client.reply_json({"flushed_pages": pages})


def _flush(engine: Engine) -> int:
    return engine.flush_cache()


async def requests(service: Service, client: Client) -> None:
    """GET /admin/requests: what is under way; no texts."""
    model = service.loaded()
    found = [
        {
            "id": answer.id,
            "prompt_tokens": len(answer.order.prompt),
            "answer_tokens": answer.num_tokens,
            "priority": answer.order.priority,
            "has_started": answer.num_tokens > 0,
            "is_blocked": exchange.blocked_since is not None,
        }
        for exchange in model.thread.live_exchanges
        for answer in exchange.unfinished
    ]
    await client.reply_json({"requests": found})


async def drain(service: Service, client: Client) -> None:
    """POST /admin/drain: refuse new requests from now on; those under way end in peace."""
    model = service.loaded()
    service.phase, model.gate.is_draining = "draining", True
    await client.reply_json({"status": "draining", "under_way": model.thread.num_live})


async def resume(service: Service, client: Client) -> None:
    """POST /admin/resume: take requests again after a drain."""
    model = service.loaded()
    service.phase, model.gate.is_draining = "ready", False
    await client.reply_json({"status": "ready"})
