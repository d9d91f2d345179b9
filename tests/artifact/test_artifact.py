"""Artifact: reading, the manifest's rules, and hashes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sglk.errors import ArtifactError
from sglk.targets.artifact import Artifact

Rewrite = Callable[..., Path]


def test_reads_programs_and_weights(tiny: Path) -> None:
    with Artifact.open(tiny) as artifact:
        assert artifact.entries == ("forward",)
        assert artifact.program("forward").kernels == ("scale",)
        assert bytes(artifact.weight("w")) == bytes(artifact.weight("tied"))
        assert artifact.weight("w").ctypes.data % 4096 == 0
        assert not artifact.weight("w").flags.writeable
        done: list[int] = []
        artifact.verify_weights(done.append)
        assert done == [5120]


def test_weights_outlive_the_artifact_and_leave_with_their_last_view(tiny: Path) -> None:
    def is_mapped() -> bool:
        return str(tiny) in Path("/proc/self/maps").read_text()

    with Artifact.open(tiny) as artifact:
        weight = artifact.weight("w")
    assert weight[255] == 255
    assert is_mapped()
    del weight
    assert not is_mapped()


def test_unknown_names_are_listed(tiny: Path) -> None:
    with Artifact.open(tiny) as artifact:
        for read, message in [
            (artifact.program, "no program 'x' (has: ['forward'])"),
            (artifact.weight, "no weight 'x' (has: ['tied', 'w'])"),
            (artifact.view, "no member 'x' (has: ["),
        ]:
            with pytest.raises(ArtifactError, match=re.escape(message)):
                read("x")


def _entry(**changes: Any) -> dict[str, Any]:
    with_blob = {"blob": "lib/generic.so", "bytes": 14, "dtype": "f32", "shape": [1]}
    return {"w": with_blob | {"layout": "", "sections": {}, "sha256": "0" * 64} | changes}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": [2, 0]}, "format 2.0: this sglk reads format 1.x (upgrade sglk)"),
        ({"format": [0, 9]}, "(compile the model again)"),
        ({"format": [1]}, "expected a list of 2"),
        ({"features": ["warp-drive"]}, "needs the feature 'warp-drive', which this sglk lacks"),
        ({"model": {}}, "model: expected the key 'architecture'"),
        ({"model": {"name": "a", "architecture": "b", "vocab_size": -1}}, "vocab_size: expected a"),
        ({"target": {"name": "cpu"}}, "target: expected the key 'variants'"),
        (
            {"target": {"name": "cpu", "variants": [], "page_size": 0}},
            "page_size: expected a whole",
        ),
        ({"programs": {"step": "../x"}}, "programs: step: no member '../x'"),
        ({"kernels": "kernels.json"}, "kernels: no member 'kernels.json'"),
        ({"weights": _entry(bytes=13)}, "weight w: expected 13 bytes, got a blob of 14"),
        ({"weights": _entry()}, "expected a blob named by its hash, got 'lib/generic.so'"),
        ({"weights": _entry(sha256="x")}, "expected a sha256 of 64 hexadecimal digits"),
        ({"shards": {"ranks": 2, "rank": 2}}, "shards: rank: expected a whole number in 0..1"),
    ],
)
def test_manifest_rules(rewrite: Rewrite, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ArtifactError, match=re.escape(message)):
        Artifact.open(rewrite(**changes))


def test_later_minor_version_and_unknown_keys_are_read(rewrite: Rewrite) -> None:
    path = rewrite(format=[1, 7], invention={"a": 1})
    with Artifact.open(path) as artifact:
        assert artifact.manifest["invention"] == {"a": 1}


def test_section_outside_its_weight_is_refused(tiny: Path, rewrite: Rewrite) -> None:
    with Artifact.open(tiny) as artifact:
        weights: dict[str, Any] = dict(artifact.weights)
    weights["w"] = weights["w"] | {"sections": {"q": [4096, 1025]}}
    with pytest.raises(ArtifactError, match="section q: expected an end within 5120, got 5121"):
        Artifact.open(rewrite(weights=weights))


def test_program_that_wants_a_missing_weight_is_refused(rewrite: Rewrite) -> None:
    with (
        Artifact.open(rewrite(weights={})) as artifact,
        pytest.raises(ArtifactError, match="no weight 'w'"),
    ):
        artifact.program("forward")


def test_program_under_another_name_is_refused(rewrite: Rewrite) -> None:
    path = rewrite(programs={"step": "programs/forward.json"})
    with (
        Artifact.open(path) as artifact,
        pytest.raises(ArtifactError, match="it calls itself 'forward'"),
    ):
        artifact.program("step")


@pytest.mark.parametrize("member", ["manifest.json", "programs/forward.json", "lib/generic.so"])
def test_edited_member_is_found_at_open(folder: Path, member: str) -> None:
    data = bytearray((folder / member).read_bytes())
    data[-1] ^= 1
    (folder / member).write_bytes(data)
    with pytest.raises(ArtifactError, match=r"expected sha256 .* damaged or edited"):
        Artifact.open(folder)


def test_edited_weight_is_found_by_verify(folder: Path) -> None:
    blob = next((folder / "weights").iterdir())
    blob.write_bytes(b"x" + blob.read_bytes()[1:])
    with (
        Artifact.open(folder) as artifact,
        pytest.raises(ArtifactError, match=r"(w|tied): expected sha256"),
    ):
        artifact.verify_weights()


def test_shorter_missing_and_extra_members_are_found_at_open(folder: Path) -> None:
    blob = next((folder / "weights").iterdir())
    data = blob.read_bytes()
    blob.write_bytes(data[:-1])
    with pytest.raises(ArtifactError, match="expected 5120 bytes, got 5119"):
        Artifact.open(folder)
    blob.unlink()
    with pytest.raises(ArtifactError, match="expected 5120 bytes, got none"):
        Artifact.open(folder)
    blob.write_bytes(data)
    (folder / "extra").write_bytes(b"")
    with pytest.raises(ArtifactError, match="member extra is not in the manifest"):
        Artifact.open(folder)


def test_manifest_is_readable_json(folder: Path) -> None:
    manifest = json.loads((folder / "manifest.json").read_bytes())
    assert manifest["members"]["lib/generic.so"]["bytes"] == 14
