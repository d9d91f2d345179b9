"""``sglk run model.sglk "question"``: one streamed answer; without a question a chat.

The answer alone goes to standard output; everything else goes to standard error.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
import time
from collections.abc import Mapping
from typing import Any

from ..errors import RequestError
from ..runtime import SamplingParams, load

SAMPLING: dict[str, tuple[type, str]] = {
    "temperature": (float, "0 takes the likeliest token (default), 1 samples as trained"),
    "top-p": (float, "sample among the likeliest tokens of this total probability"),
    "top-k": (int, "sample among so many likeliest tokens"),
    "min-p": (float, "drop tokens below this share of the likeliest one's probability"),
    "repetition-penalty": (float, "above 1: tokens seen before become less likely"),
    "presence-penalty": (float, "above 0: tokens of the answer become less likely"),
    "frequency-penalty": (float, "the same for each time they occurred"),
    "seed": (int, "the same seed gives the same answer"),
}


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Answer one prompt, streamed; without a prompt chat until end of input.",
    )
    parser.add_argument("artifact", help="an .sglk file or folder")
    parser.add_argument("prompt", nargs="?", help="the question; - reads it from standard input")
    parser.add_argument("--raw", action="store_true", help="continue the text, no chat template")
    parser.add_argument("--system", metavar="TEXT", help="system message of the chat")
    parser.add_argument(
        "--max-tokens", metavar="N", type=int, default=512, help="longest answer (default: 512)"
    )
    parser.add_argument(
        "--device", metavar="NAME", help="device to run on (default: the artifact's target)"
    )
    parser.add_argument(
        "--threads", metavar="N", type=int, help="worker threads (default: all allowed cores)"
    )
    parser.add_argument("--stats", action="store_true", help="print times and tokens/s at the end")
    group = parser.add_argument_group("sampling (default: greedy)")
    for name, (kind, text) in SAMPLING.items():
        metavar = "N" if kind is int else "X"
        group.add_argument(f"--{name}", metavar=metavar, type=kind, help=text)
    group.add_argument(
        "--stop", metavar="TEXT", action="append", help="end before this text; may be repeated"
    )
    return parser


def run(options: argparse.Namespace) -> int:
    params = _params(options)
    prompt = _read_stdin() if options.prompt == "-" else options.prompt
    if prompt is not None and not prompt.strip():
        raise RequestError("prompt: expected text, got an empty prompt (give a question)")
    started = time.perf_counter()
    llm = load(options.artifact, device=options.device, num_threads=options.threads)
    loaded = time.perf_counter() - started
    with llm:
        if prompt is None:
            return _chat(llm, options, params)
        generation = _answer(llm, options, [*_system(options), _user(prompt)], params)
        host = host_lines(llm.engine.stats().host_ops)
    if options.stats:
        print("\n".join([stats_line(generation, loaded), *host]), file=sys.stderr)
    return 0


def _params(options: argparse.Namespace) -> SamplingParams:
    """Checked before the model is loaded; a fault names the option as it was typed."""
    names = [name.replace("-", "_") for name in (*SAMPLING, "stop", "max-tokens")]
    given = {n: getattr(options, n) for n in names if getattr(options, n) is not None}
    try:
        return SamplingParams(**given)
    except RequestError as error:
        field, _, rest = str(error).partition(":")
        raise RequestError(f"--{field.replace('_', '-')}:{rest}") from error


def _read_stdin() -> str:
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise RequestError(
            f"standard input: expected UTF-8 text, got byte {error.object[error.start]:#04x} "
            f"at position {error.start}"
        ) from error


def _system(options: argparse.Namespace) -> list[dict[str, str]]:
    return [{"role": "system", "content": options.system}] if options.system else []


def _user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def _answer(
    llm: Any,
    options: argparse.Namespace,
    messages: list[dict[str, str]],
    params: SamplingParams,
    is_interactive: bool = False,
) -> Any:
    """Stream one answer to standard output and return the whole of it.

    In an interactive chat Ctrl-C ends the answer, not the chat.
    """
    raw = options.raw or llm.chat_template is None
    make, prompt = (llm.generate, messages[-1]["content"]) if raw else (llm.chat, messages)
    with make(prompt, stream=True, params=params) as stream:
        try:
            for piece in stream:
                print(piece, end="", flush=True)
        except KeyboardInterrupt:
            if not is_interactive:
                raise
            print(" [stopped]", end="", file=sys.stderr, flush=True)
            stream.close()
        print(flush=True)
        return stream.generation


def _chat(llm: Any, options: argparse.Namespace, params: SamplingParams) -> int:
    """Read questions until end of input; every answer stays in the conversation."""
    is_interactive = sys.stdin.isatty()
    if is_interactive:
        print("Ctrl-C stops an answer, Ctrl-D ends the chat.", file=sys.stderr)
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401  (gives `input` line editing and history)
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="strict")  # else a bad byte ends as a strange character
    messages = _system(options)
    while (text := _question(is_interactive)) is not None:
        if not text.strip():
            continue
        messages.append(_user(text))
        try:
            generation = _answer(llm, options, messages, params, is_interactive)
        except RequestError as error:
            print(f"sglk run: {error}", file=sys.stderr)
            messages.pop()
            if not is_interactive:
                return 1
            continue
        messages.append({"role": "assistant", "content": generation.text})
        if options.stats:
            print(stats_line(generation), file=sys.stderr)
    return 0


def _question(is_interactive: bool) -> str | None:
    """The next line; None at the end of input, and at Ctrl-C where nothing is being answered."""
    try:
        return input("> " if is_interactive else "")
    except EOFError:
        if is_interactive:
            print(file=sys.stderr)
        return None
    except KeyboardInterrupt:
        if not is_interactive:
            raise
        print(file=sys.stderr)
        return None
    except UnicodeDecodeError as error:
        raise RequestError("standard input: expected UTF-8 text, got other bytes") from error


def host_lines(host_ops: Mapping[str, tuple[int, float]]) -> list[str]:
    """``[on the host: cumsum x24 in 0.010 s]``: the chip has no kernel for it."""
    done = [f"{op} x{calls} in {seconds:.3f} s" for op, (calls, seconds) in host_ops.items()]
    return [f"[on the host: {', '.join(done)}]"] if done else []


def stats_line(generation: Any, loaded: float | None = None) -> str:
    """``[loaded in 0.25 s; 31 prompt tokens in 0.10 s; 8 tokens at 160/s, stop]``"""
    count, seconds = len(generation.itl), sum(generation.itl)
    speed = f" at {count / seconds:.0f}/s" if count else ""
    prompt = generation.num_prompt_tokens - generation.num_cached_tokens
    cached = generation.num_cached_tokens
    cached_text = f" ({cached} more cached)" if cached else ""
    return (
        (f"[loaded in {loaded:.2f} s; " if loaded is not None else "[")
        + f"{prompt} prompt tokens{cached_text} in {generation.ttft:.2f} s; "
        f"{len(generation.token_ids)} tokens{speed}, {generation.finish_reason}]"
    )
