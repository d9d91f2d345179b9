"""``sglk run model.sglk "question"``: one streamed answer; without a question an interactive chat."""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

from ..errors import RequestError
from ..runtime import load


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sglk run",
        description="Answer one prompt, streamed; without a prompt chat until end of input.",
    )
    parser.add_argument("artifact", help="an .sglk file or folder")
    parser.add_argument("prompt", nargs="?", help="the question; - reads it from standard input")
    parser.add_argument("--raw", action="store_true", help="continue the text, no chat template")
    parser.add_argument("--system", help="system message of the chat")
    parser.add_argument("--device", help="device to run on (default: the artifact's target)")
    parser.add_argument("--threads", type=int, help="worker threads (default: all allowed cores)")
    parser.add_argument("--max-tokens", type=int, default=512, help="longest answer (default: 512)")
    parser.add_argument("--stats", action="store_true", help="print tokens/s at the end")
    add_sampling(parser)
    return parser


def add_sampling(parser: argparse.ArgumentParser) -> None:
    """Sampling values; what is not given keeps the runtime's default (greedy)."""
    group = parser.add_argument_group("sampling (default: greedy)")
    for name in ("temperature", "top-p", "min-p"):
        group.add_argument(f"--{name}", type=float)
    for name in ("repetition-penalty", "presence-penalty", "frequency-penalty"):
        group.add_argument(f"--{name}", type=float)
    group.add_argument("--top-k", type=int)
    group.add_argument("--seed", type=int)
    group.add_argument("--stop", action="append", help="stop at this text; may be repeated")


SAMPLING = (
    "temperature",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "top_k",
    "seed",
    "stop",
    "max_tokens",
)


def run(options: argparse.Namespace) -> int:
    sampling = {n: getattr(options, n) for n in SAMPLING if getattr(options, n) is not None}
    started = time.perf_counter()
    llm = load(options.artifact, device=options.device, num_threads=options.threads)
    loaded = time.perf_counter() - started
    with llm:
        if options.prompt is None:
            return _chat(llm, options, sampling)
        prompt = sys.stdin.read() if options.prompt == "-" else options.prompt
        if not prompt.strip():
            raise RequestError("prompt: expected text, got an empty prompt (give a question)")
        generation = _answer(llm, options, [*_system(options), _user(prompt)], prompt, sampling)
    if options.stats:
        print(stats_line(generation, loaded), file=sys.stderr)
    return 0


def _system(options: argparse.Namespace) -> list[dict[str, str]]:
    return [{"role": "system", "content": options.system}] if options.system else []


def _user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def _answer(
    llm: Any,
    options: argparse.Namespace,
    messages: list[dict[str, str]],
    prompt: str,
    sampling: dict[str, Any],
) -> Any:
    """Stream one answer to standard output and return the whole of it."""
    raw = options.raw or llm.chat_template is None
    make = llm.generate if raw else llm.chat
    with make(prompt if raw else messages, stream=True, **sampling) as stream:
        for piece in stream:
            print(piece, end="", flush=True)
        print(flush=True)
        return stream.generation


def _chat(llm: Any, options: argparse.Namespace, sampling: dict[str, Any]) -> int:
    """Read questions until end of input; every answer stays in the conversation."""
    messages = _system(options)
    while True:
        try:
            text = input("> " if sys.stdin.isatty() else "")
        except EOFError:
            return 0
        if not text.strip():
            continue
        messages.append(_user(text))
        try:
            generation = _answer(llm, options, messages, text, sampling)
        except RequestError as error:
            print(f"sglk run: {error}", file=sys.stderr)
            messages.pop()
            continue
        messages.append({"role": "assistant", "content": generation.text})


def stats_line(generation: Any, loaded: float) -> str:
    """``12 prompt tokens in 0.02 s (600/s), 40 tokens at 160/s, loaded in 0.1 s``"""
    count, seconds = len(generation.itl), sum(generation.itl)
    decode = f"{count / seconds:.0f} tokens/s" if count else "one token"
    prompt = generation.num_prompt_tokens - generation.num_cached_tokens
    return (
        f"[loaded in {loaded:.2f} s; first token after {generation.ttft:.3f} s for {prompt} prompt tokens; "
        f"{len(generation.token_ids)} tokens, {decode}]"
    )
