"""A function in a forked process with a time limit: a crash or a hang becomes a result of its own.

What the parent has imported, its children have: boards of many rows import torch once. The limit
is of processor time, so that a busy machine is no hang; on the clock it is ten times as long.
"""

from __future__ import annotations

import math
import multiprocessing
import resource
import signal
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

Result = TypeVar("Result")
_PATIENCE = 10


@dataclass(frozen=True)
class Crash:
    """Why there is no result."""

    reason: str


def run_forked(function: Callable[..., Result], *args: Any, limit: float) -> Result | Crash:
    """``function(*args)`` in a process of its own, for at most ``limit`` seconds of computing."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(sender, function, args, limit))
    process.start()
    sender.close()
    try:
        if not receiver.poll(_PATIENCE * limit):
            return Crash(f"not done after {_PATIENCE * limit:g} s, most of them without computing")
        result: Result | Crash = receiver.recv()
        return result
    except EOFError:
        process.join()
        if process.exitcode == -signal.SIGXCPU:
            return Crash(f"not done after {limit:g} s of computing")
        return Crash(f"the process died with exit code {process.exitcode}")
    finally:
        if process.is_alive():
            process.join(1)
        if process.is_alive():
            process.kill()
        process.join()


def _child(sender: Any, function: Callable[..., Any], args: tuple[Any, ...], limit: float) -> None:
    import logging
    import warnings

    import torch

    seconds = math.ceil(limit)
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    try:
        result = function(*args)
    except Exception as error:  # noqa: BLE001 - a crash is a result
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(last.filename).name}:{last.lineno}"
        result = Crash(f"{type(error).__name__}: {error} at {where}")
    sender.send(result)
