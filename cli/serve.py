"""``sglk serve model.sglk``: OpenAI's API, metrics and a page, until SIGTERM or Ctrl-C."""

from __future__ import annotations

import argparse
import asyncio
import logging
import re
import sys
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import SglkError

if TYPE_CHECKING:
    from ..runtime.server.settings import Settings

LOOPBACK = ("127.0.0.1", "::1", "localhost")
WARM_CONTEXT = 4096
"""Tokens of context that a device makes ready for; longer ones cost a moment when they come."""
_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Serve an artifact over OpenAI's HTTP API.",
        epilog="docs/operations.md says what each limit is for and how to find its value.",
    )
    parser.add_argument("artifact", help="an .sglk file or folder")
    _add_access(parser.add_argument_group("who may come in"))
    _add_engine(parser.add_argument_group("the engine"))
    _add_limits(parser.add_argument_group("limits"))
    return parser


def _add_access(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--host", metavar="H", help="address (default: 127.0.0.1, this machine only)"
    )
    group.add_argument("--port", metavar="P", type=int, help="port (default: 8000; 0: a free one)")
    group.add_argument("--model-name", metavar="NAME", help="what clients call the model")
    for kind, text in (
        ("api", "that clients must have"),
        ("admin", "for /flush_cache, /admin/..."),
    ):
        group.add_argument(f"--{kind}-key-file", metavar="F", help=f"keys {text}, one a line")
        group.add_argument(f"--{kind}-key-env", metavar="VAR", help="the same from a variable")
    group.add_argument("--log-dir", metavar="DIR", help="folder for requests.jsonl and server.log")


def _add_engine(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--device", metavar="NAME", help="device (default: the artifact's target)")
    group.add_argument(
        "--threads", metavar="N", type=int, help="worker threads (default: all cores)"
    )
    group.add_argument("--kv-memory", metavar="SIZE", help="for keys and values, such as 2GiB")
    group.add_argument("--memory", metavar="SIZE", help="for everything, shared out by sglk plan")
    group.add_argument(
        "--memory-share", metavar="X", type=float,
        help="share of a GPU's free memory to fill, unless one of the above is given (0.9)",
    )  # fmt: skip
    group.add_argument("--max-running", metavar="N", type=int, help="answers side by side (32)")
    group.add_argument("--max-step-tokens", metavar="N", type=int, help="tokens of a step (512)")
    group.add_argument("--max-context", metavar="N", type=int, help="longest sequence")
    group.add_argument(
        "--policy", choices=("fcfs", "cache-aware"), help="who of equal priority starts next (fcfs)"
    )
    group.add_argument(
        "--prefill-share",
        metavar="X",
        type=float,
        help="share of a step's tokens for prefill while others decode, 0 to 1 (1)",
    )
    group.add_argument(
        "--itl-target-ms",
        metavar="MS",
        type=float,
        help="size prefill chunks so that a step takes no longer while others decode",
    )
    group.add_argument(
        "--batch-wait-ms", metavar="MS", type=float, help="hold arrivals back to start together (0)"
    )
    group.add_argument(
        "--aging-steps",
        metavar="N",
        type=int,
        help="steps of waiting after which no priority passes any more (256)",
    )
    group.add_argument(
        "--audit-cache", metavar="SHARE", help="compute so many cache hits again, such as 0.1%% (0)"
    )
    group.add_argument(
        "--no-prefix-cache", action="store_true", help="compute every prompt from its start"
    )
    group.add_argument(
        "--no-selftest", action="store_true", help="do not run the artifact's vectors"
    )


def _add_limits(group: argparse._ArgumentGroup) -> None:
    """Every further field of `Settings`, from its own words."""
    from ..runtime.server.settings import Settings, documentation

    texts = documentation()
    for field in fields(Settings):
        if field.name in ("host", "port", "model_name"):
            continue
        kind = float if isinstance(field.default, float) else int
        shown = "none" if field.default is None else f"{field.default:g}"
        group.add_argument(
            f"--{field.name.replace('_', '-')}",
            metavar="S" if kind is float else "N",
            type=kind,
            help=f"{texts[field.name].rstrip('.').replace('%', '%%')} ({shown})",
        )


def run(options: argparse.Namespace) -> int:
    try:
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ModuleNotFoundError as error:
        raise SglkError(
            f"sglk serve: expected the package {error.name}, got none (pip install 'sglk[serve]')"
        ) from error
    from ..runtime.server.keys import Keys
    from ..runtime.server.serve import Running, serve
    from ..runtime.server.startup import Phases, process_started

    phases = Phases(process_started())
    phases.end("imports")
    settings = settings_of(options)
    keys = Keys.read("--api-key", options.api_key_file, options.api_key_env)
    admin = Keys.read("--admin-key", options.admin_key_file, options.admin_key_env)
    _log_to(options.log_dir)
    if settings.host not in LOOPBACK and not keys:
        print(
            f"sglk serve: listening on {settings.host} without --api-key-file: "
            "whoever reaches it may use it",
            file=sys.stderr,
        )

    def started(running: Running) -> None:
        print(running.url, flush=True)

    return asyncio.run(
        serve(
            _loader(options),
            settings,
            keys=keys,
            admin_keys=admin,
            log_folder=options.log_dir,
            phases=phases,
            on_started=started,
        )
    )


def settings_of(options: argparse.Namespace) -> Settings:
    """The settings that were given; the rest keep their defaults."""
    from ..runtime.server.settings import Settings

    names = [field.name for field in fields(Settings)]
    values = {n: getattr(options, n) for n in names if getattr(options, n) is not None}
    values.setdefault("model_name", _model_name(options.artifact))
    return Settings(**values)


def _model_name(artifact: str) -> str:
    """The file's name without its end, in characters that every client takes."""
    return re.sub(r"[^\w.+-]", "-", Path(artifact).resolve().stem) or "model"


def _loader(options: argparse.Namespace) -> Any:
    """Opens the artifact, runs its vectors on the device that will serve, gives the model."""
    load_options = {
        **{
            name: parse_size(f"--{name.replace('_', '-')}", getattr(options, name))
            for name in ("kv_memory", "memory")
            if getattr(options, name) is not None
        },
        "num_threads": options.threads,
        "max_context": options.max_context,
        "prefix_cache": not options.no_prefix_cache,
    }
    plain = ("memory_share", "max_running", "max_step_tokens", "policy", "prefill_share")
    for name in (*plain, "aging_steps"):
        if getattr(options, name) is not None:
            load_options[name] = getattr(options, name)
    for name, field in (("itl_target_ms", "itl_target_s"), ("batch_wait_ms", "batch_wait_s")):
        if getattr(options, name) is not None:
            load_options[field] = getattr(options, name) / 1e3

    if options.audit_cache is not None:
        load_options["audit_cache"] = parse_share(options.audit_cache)

    def open_model(phases: Any) -> Any:
        from ..runtime import load
        from ..runtime.selftest import run_selftest
        from ..runtime.server.serve import check_artifact
        from ..targets.device import WarmsUp

        phases.end("runtime")
        llm = load(options.artifact, device=options.device, **load_options)
        if llm.tokenizer is not None:
            llm.tokenizer.read()  # now, so that no request waits for it
        phases.end("load")
        if not options.no_selftest and llm.artifact is not None:
            check_artifact(llm, list(run_selftest(llm.artifact, executable=llm.engine.executable)))
            phases.end("self-test")
        executable, limits = llm.engine.executable, llm.engine.limits
        if isinstance(executable, WarmsUp):
            executable.warm_up(limits.max_running, min(limits.max_context, WARM_CONTEXT))
            phases.end("warm-up")
        return llm

    return open_model


def parse_size(option: str, text: str) -> int:
    """Bytes: a number with an optional unit.

    >>> [parse_size("--memory", text) for text in ("2GiB", "512M", "4096")]
    [2147483648, 536870912, 4096]
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", text.strip().lower())
    if found is None:
        raise SglkError(f"{option}: expected a size such as 512MiB, got {text!r:.40}")
    return int(float(found[1]) * _UNITS[found[2]])


def parse_share(text: str) -> float:
    """A share of one: a number, or one with a percent sign.

    >>> parse_share("0.1%"), parse_share("0.5"), parse_share("0")
    (0.001, 0.5, 0.0)
    """
    number, _, percent = text.strip().partition("%")
    try:
        share = float(number) / (100 if "%" in text else 1)
    except ValueError:
        share = -1.0
    if percent or not 0 <= share <= 1:
        raise SglkError(f"--audit-cache: expected a share such as 0.1%, got {text!r:.40}")
    return share


def _log_to(folder: str | None) -> None:
    """Warnings and the start to standard error; with a folder also to ``server.log``."""
    logging.getLogger("sglk.runtime.server").setLevel(logging.INFO)
    if folder is None:
        return
    from logging.handlers import RotatingFileHandler

    Path(folder).mkdir(parents=True, exist_ok=True)
    handler = RotatingFileHandler(
        Path(folder) / "server.log", maxBytes=16 * 2**20, backupCount=4, encoding="utf-8"
    )
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.getLogger().addHandler(handler)
