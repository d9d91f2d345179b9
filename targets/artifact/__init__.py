"""The file a compile leaves and a device loads: container, manifest, programs, weights.

>>> import tempfile, pathlib
>>> folder = tempfile.TemporaryDirectory()
>>> path = pathlib.Path(folder.name) / "tiny.sglk"
>>> with ArtifactWriter(path) as writer:
...     blob = writer.add_blob([b"abc", b"def"])
...     writer.finish({
...         "format": FORMAT, "features": [], "producer": "example",
...         "model": {"name": "tiny", "architecture": "none"},
...         "target": {"name": "cpu", "variants": []},
...         "programs": {}, "weights": {},
...     })
>>> with Artifact.open(path) as artifact:
...     artifact.read(blob)
b'abcdef'
>>> folder.cleanup()
"""

from .artifact import Artifact
from .manifest import FORMAT
from .program import LOAD_SYMBOLS, SLOTS, Arg, Bucket, Buffer, Call, Program
from .writer import ArtifactWriter

__all__ = [
    "FORMAT",
    "LOAD_SYMBOLS",
    "SLOTS",
    "Arg",
    "Artifact",
    "ArtifactWriter",
    "Bucket",
    "Buffer",
    "Call",
    "Program",
]
