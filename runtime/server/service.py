"""What a running server consists of, and the parts of a request that all endpoints share."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..llm import LLM
from .call_format import find_call_format
from .engine_thread import EngineThread
from .exchange import Answer, Exchange, Order
from .gate import Gate, Places
from .keys import Keys
from .metrics import Metrics, State, make_registry
from .problem import Problem
from .prompts import Prompts
from .request_log import RequestLog
from .request_schema import chat_schema, completion_schema, detokenize_schema, tokenize_schema
from .settings import Settings
from .structured import Grammars

CHARS_PER_TOKEN = 4
"""What a body is taken for before its text is tokenized."""


class Model:
    """A loaded model behind its engine thread."""

    def __init__(self, llm: LLM, name: str, thread: EngineThread, settings: Settings) -> None:
        engine = llm.engine
        self.llm, self.name, self.thread = llm, name, thread
        self.created = int(time.time())
        self.limits = engine.limits
        self.vocab_size = engine.vocab_size
        form = find_call_format(llm.chat_template) if llm.chat_template is not None else None
        self.prompts = Prompts(
            llm.tokenizer, llm.chat_template, form, min(self.limits.max_context, 2**31 - 1)
        )
        self.grammars = Grammars(llm.tokenizer, engine.vocab_size)
        self.gate = Gate(
            self.limits.max_running,
            settings.max_queued,
            settings.max_queued_tokens,
            settings.max_choices,
        )
        self.special = _special_tokens(llm)
        self.schemas: dict[str, Mapping[str, Any]] = {
            "chat": chat_schema(name),
            "completion": completion_schema(name),
            "tokenize": tokenize_schema(name),
            "detokenize": detokenize_schema(name),
        }
        self._numbers = itertools.count()

    def exchange(self, orders: Sequence[Order], places: Places | None) -> Exchange:
        """The answers of one request; without places they are the server's own."""
        number = next(self._numbers)
        answers = [Answer(f"r{number}.{at}", at, order) for at, order in enumerate(orders)]
        if places is None:
            return Exchange(answers, is_counted=False)

        def ended(answer: Answer, seconds: float) -> None:
            places.answer_ended()
            self.gate.note(answer, seconds)

        return Exchange(answers, on_answer_end=ended)

    def token_text(self, token_id: int) -> tuple[str, list[int]]:
        """A token's text and bytes, for log-probabilities."""
        tokenizer = self.llm.tokenizer
        if tokenizer is None:
            return f"token_id:{token_id}", []
        data = tokenizer.vocabulary.token_bytes(token_id)
        if not data:
            data = tokenizer.name(token_id).encode()
        return data.decode("utf-8", "replace"), list(data)

    def close(self) -> None:
        """End the workers; the thread has to have ended."""
        self.prompts.close()
        self.grammars.close()
        self.llm.close()


class Service:
    """Everything that endpoints and the sweeper look at."""

    def __init__(self, settings: Settings, keys: Keys, admin_keys: Keys, log: RequestLog) -> None:
        self.settings, self.keys, self.admin_keys, self.log = settings, keys, admin_keys, log
        self.metrics, self.state = Metrics(), State()
        self.registry = make_registry(self.metrics, self.state)
        self.model: Model | None = None
        self.phase = "starting"
        """"starting", "ready", "draining", "failed"."""
        self.load_error: str | None = None
        self.streams: set[Exchange] = set()
        """Under way, for the sweeper."""
        self.connections: Callable[[], int] = lambda: 0

    def loaded(self) -> Model:
        """The model, or `Problem` while there is none to ask."""
        if self.model is None or self.phase == "starting":
            raise Problem(
                "server: expected to be ready, got a start that is under way (try again)",
                status=503,
                code="not_ready",
                retry_after=1,
                reason="not_ready",
            )
        return self.model

    async def probe(self, timeout: float) -> bool:
        """Whether the device computes: one real token, by the way that answers take."""
        model = self.loaded()
        from ..request import SamplingParams

        order = Order([0], SamplingParams(max_tokens=1, ignore_eos=True))
        exchange = model.exchange([order], None)
        model.thread.submit(exchange)
        try:
            async with asyncio.timeout(timeout):
                await exchange.done()
        except (TimeoutError, Problem):
            model.thread.abort(exchange)
            return False
        return True


def _special_tokens(llm: LLM) -> dict[str, int]:
    """Special tokens by their text."""
    if llm.tokenizer is None:
        return {}
    names = {id: llm.tokenizer.name(id) for id in llm.tokenizer.special_ids}
    return {name: id for id, name in names.items() if name}
