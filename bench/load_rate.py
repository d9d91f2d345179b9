"""How fast an artifact gets from disk into a device's memory, beside a plain read of the file.

usage: python bench/load_rate.py llama8b.sglk --device cuda:0 [--folder /data]

An artifact without weights (``--weights dummy``) is first copied into the folder with weights made
from its seeds. The file is dropped from the page cache before each cold figure; how much of it was
still there is asked of the system and printed.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import json
import logging
import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sglk.targets.artifact import Artifact, ArtifactWriter
from sglk.targets.artifact.page_in import drop_from_cache
from sglk.targets.registry import open_device

PAGES = 64
STEP_TOKENS = 512
READ_BYTES = 8 << 20
SAMPLES = 256
"""Places of the file that are asked for."""
THREADS = min(16, os.cpu_count() or 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("artifact", type=Path)
    parser.add_argument("--device", help="default: the artifact's target")
    parser.add_argument("--folder", type=Path, default=Path(), help="for a copy with weights (.)")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    logging.basicConfig(format="%(message)s")
    logging.getLogger("sglk.targets").setLevel(logging.INFO)
    path, is_copy = with_weights(options.artifact, options.folder)
    try:
        rows = measure(path, options.device)
    finally:
        if is_copy:
            path.unlink()
    print("\n".join(table(rows)))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


def with_weights(source: Path, folder: Path) -> tuple[Path, bool]:
    """The artifact, or a copy that holds what it makes on load; and whether it is a copy."""
    with Artifact.open(source) as artifact:
        fills = [name for name in artifact.weights if artifact.fill(name) is not None]
        if not fills:
            return source, False
        path = folder / f"{source.stem}-weights.sglk"
        began = time.perf_counter()
        write_copy(artifact, path)
    seconds = time.perf_counter() - began
    size = path.stat().st_size / 1e9
    print(f"made and wrote {size:.2f} GB in {seconds:.1f} s, {size / seconds:.2f} GB/s", flush=True)
    return path, True


def write_copy(artifact: Artifact, path: Path) -> None:
    """The same artifact with a blob for each weight."""
    listed: Any = artifact.manifest
    with ArtifactWriter(path) as writer:
        for name in listed["members"]:
            if not name.startswith("weights/"):
                writer.add_bytes(name, artifact.view(name))
        weights = {}
        for name, data in made_ahead(artifact, list(artifact.weights)):
            record = {k: v for k, v in artifact.weights[name].items() if k != "fill"}
            blob = writer.add_blob([data])
            weights[name] = {**record, "blob": blob, "sha256": blob.rpartition("/")[2]}
        features = [each for each in listed["features"] if each != "fills"]
        writer.finish({**listed, "features": features, "weights": weights})


def made_ahead(artifact: Artifact, names: Sequence[str]) -> Iterator[tuple[str, NDArray[np.uint8]]]:
    """Weights in order, several in the making while one is written."""
    with ThreadPoolExecutor(THREADS) as pool:
        queue: deque[Any] = deque()
        for at in range(len(names) + THREADS):
            if at < len(names):
                queue.append((names[at], pool.submit(artifact.weight, names[at])))
            if at >= THREADS:
                name, data = queue.popleft()
                yield name, data.result()


def measure(path: Path, device: str | None) -> list[dict[str, object]]:
    """Cold and warm: a read by one thread, and a load."""
    size = path.stat().st_size
    rows: list[dict[str, object]] = []

    def timed(what: str, call: Callable[[], None], is_cold: bool) -> None:
        if is_cold:
            drop(path)
        cached = cached_share(path)
        began = time.perf_counter()
        call()
        seconds = time.perf_counter() - began
        rate = size / seconds / 1e9
        rows.append({"what": what, "cached": cached, "seconds": seconds, "gb_per_s": rate})

    timed("read", lambda: read(path), is_cold=True)
    timed("load", lambda: load(path, device), is_cold=True)
    timed("read", lambda: read(path), is_cold=False)
    timed("load", lambda: load(path, device), is_cold=False)
    return rows


def read(path: Path) -> None:
    buffer = memoryview(bytearray(READ_BYTES))
    with path.open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


def load(path: Path, device: str | None) -> None:
    """From opening the file to the device being ready for a step."""
    with Artifact.open(path) as artifact:
        target: Any = artifact.manifest["target"]
        opened = open_device(device or target["name"])
        with contextlib.closing(
            opened.load(artifact, num_pages=PAGES, max_tokens=STEP_TOKENS)
        ) as executable:
            assert executable.max_tokens == STEP_TOKENS


def drop(path: Path) -> None:
    """Out of the page cache; what another process maps stays there."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        drop_from_cache(file.fileno())


def cached_share(path: Path) -> float:
    """Share of some places of the file that a read would not have to wait for; NaN: not told."""
    buffer, count = bytearray(1), 0
    places = np.linspace(0, path.stat().st_size - 1, SAMPLES).astype(int).tolist()
    with path.open("rb", buffering=0) as file:
        for place in places:
            try:
                count += os.preadv(file.fileno(), [buffer], place, os.RWF_NOWAIT)
            except BlockingIOError:
                continue
            except OSError as error:
                if error.errno != errno.EOPNOTSUPP:
                    raise
                return math.nan
    return count / len(places)


def table(rows: Sequence[dict[str, Any]]) -> list[str]:
    return ["          in page cache   seconds     GB/s"] + [
        f"{r['what']:8}{r['cached']:14.0%}{r['seconds']:12.2f}{r['gb_per_s']:9.2f}" for r in rows
    ]


if __name__ == "__main__":
    main()
