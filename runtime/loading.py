"""`load`: an artifact becomes an `LLM`."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ..errors import RequestError
from ..targets.artifact import Artifact
from ..targets.artifact.vocabulary import VOCABULARY
from .audit import CacheAudit
from .chat import ChatTemplate
from .engine import Engine
from .executor import Executor, LoadOptions, context_length, limits_of, open_executable
from .llm import LLM
from .tokenizer import GenerationConfig, Tokenizer

TOKENIZER, TEMPLATE, GENERATION = (
    "tokenizer/tokenizer.json",
    "tokenizer/chat_template.jinja",
    "tokenizer/generation.json",
)


def load(path: str | Path, device: str | None = None, **options: Any) -> LLM:
    """Load an artifact onto a device (default: the one it was compiled for).

    Options are the fields of `LoadOptions`: ``memory`` or ``kv_memory`` bytes, ``memory_share``,
    ``max_step_tokens``, ``max_running``, ``max_context``, ``num_threads``, ``prefix_cache`` with
    ``audit_cache``, ``policy`` and its values.
    """
    chosen = LoadOptions(**options)
    with _no_collections():
        artifact = Artifact.open(path)
        try:
            if "step" not in artifact.entries:
                what = f"got the entries {', '.join(artifact.entries)} (use sglk.load_forward)"
                raise RequestError(f"{path}: expected a decoder, {what}")
            return _bind(artifact, device, chosen)
        except BaseException:
            artifact.close()
            raise


@contextlib.contextmanager
def _no_collections() -> Iterator[None]:
    """Loading makes thousands of objects that stay: looking for garbage would double its time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _bind(artifact: Artifact, device: str | None, options: LoadOptions) -> LLM:
    config = _generation_config(artifact)
    # Reading a vocabulary takes about as long as placing a small model: do both at once.
    with ThreadPoolExecutor(max_workers=1) as pool:
        text_side = pool.submit(_text_side, artifact, config)
        executable = open_executable(artifact, device, options)
    try:
        tokenizer, template = text_side.result()
        limits = limits_of(executable, context_length(artifact, options), options)
    except BaseException:
        executable.close()
        raise
    audit = (
        CacheAudit(options.audit_cache, options.audit_tolerance) if options.audit_cache else None
    )
    engine = Engine(Executor(executable, limits), limits, tokenizer, config, audit=audit)
    return LLM(engine, chat_template=template, defaults=config.defaults, artifact=artifact)


def _generation_config(artifact: Artifact) -> GenerationConfig:
    if GENERATION not in artifact.names:
        return GenerationConfig()
    return GenerationConfig.parse(artifact.read(GENERATION))


def _text_side(
    artifact: Artifact, config: GenerationConfig
) -> tuple[Tokenizer | None, ChatTemplate | None]:
    if TOKENIZER not in artifact.names:
        return None, None
    tables = artifact.view(VOCABULARY) if VOCABULARY in artifact.names else None
    tokenizer = Tokenizer.parse(artifact.view(TOKENIZER), config, tables)
    if TEMPLATE not in artifact.names:
        return tokenizer, None
    source = artifact.read(TEMPLATE).decode("utf-8", "replace")
    return tokenizer, ChatTemplate(source, tokenizer.special_tokens, checked=False)
