"""What the manifest must look like: `check_manifest` reads every key that a loader relies on.

Keys: format, features, producer, model, target, programs, plans, kernels, weights, shards, members;
others are kept and ignored, so a later minor version can add some. What an older loader must not
ignore is a name in ``features``: a loader refuses the names it does not know.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...errors import ArtifactError
from .expand import FEATURE as EXPANDED
from .expand import check_expand
from .fill import DTYPES as FILLED
from .fill import FEATURE as FILLS
from .fill import Fill
from .host_ops import FEATURE as HOST_OPS
from .program import SLOTS
from .schema import (
    as_dict,
    as_digest,
    as_int,
    as_list,
    as_name,
    as_record,
    as_text,
)

FORMAT = (1, 0)
"""Format version this code writes; it reads every minor version of the same major one."""
KNOWN_FEATURES = frozenset({FILLS, EXPANDED, HOST_OPS, SLOTS})
"""Features an artifact may require."""
REQUIRED = ("format", "features", "producer", "model", "target", "programs", "weights", "members")
_MODEL_SIZES = ("vocab_size", "context_length", "num_layers", "num_kv_heads", "head_dim")
MAX_RANK = 16


def check_manifest(path: str, value: object) -> dict[str, object]:
    """The manifest, once every part has been found right; else `ArtifactError`."""
    manifest = as_dict(f"{path}: manifest", value)
    _check_version(path, manifest)
    as_record(f"{path}: manifest", manifest, REQUIRED, None)
    as_text(f"{path}: producer", manifest["producer"])
    members = _check_members(f"{path}: members", manifest["members"])
    _check_model(f"{path}: model", manifest["model"])
    _check_target(f"{path}: target", manifest["target"], members)
    for entry, member in as_dict(f"{path}: programs", manifest["programs"]).items():
        as_name(f"{path}: programs", entry)
        _check_member(f"{path}: programs: {entry}", member, members)
    for entry, member in as_dict(f"{path}: plans", manifest.get("plans", {})).items():
        _check_member(f"{path}: plans: {entry}", member, members)
    if "kernels" in manifest:
        _check_member(f"{path}: kernels", manifest["kernels"], members)
    for name, weight in as_dict(f"{path}: weights", manifest["weights"]).items():
        _check_weight(f"{path}: weight {as_name(f'{path}: weights', name)}", weight, members)
    if "shards" in manifest:
        _check_shards(f"{path}: shards", manifest["shards"])
    return manifest


def _check_version(path: str, manifest: Mapping[str, object]) -> None:
    version = as_list(f"{path}: format", manifest.get("format"), 2)
    major, minor = (as_int(f"{path}: format", part) for part in version)
    if major != FORMAT[0]:
        raise ArtifactError(
            f"{path}: format {major}.{minor}: this sglk reads format {FORMAT[0]}.x"
            f" ({'upgrade sglk' if major > FORMAT[0] else 'compile the model again'})"
        )
    for feature in as_list(f"{path}: features", manifest.get("features")):
        name = as_name(f"{path}: features", feature)
        if name not in KNOWN_FEATURES:
            raise ArtifactError(
                f"{path}: needs the feature {name!r}, which this sglk lacks (upgrade sglk)"
            )


def _check_members(where: str, value: object) -> dict[str, int]:
    sizes = {}
    for name, item in as_dict(where, value).items():
        record = as_record(f"{where}: {name}", item, ["sha256", "bytes"], None)
        as_digest(f"{where}: {name}: sha256", record["sha256"])
        sizes[name] = as_int(f"{where}: {name}: bytes", record["bytes"])
    return sizes


def _check_member(where: str, value: object, members: Mapping[str, int]) -> str:
    name = as_text(where, value, limit=255)
    if name not in members:
        raise ArtifactError(f"{where}: no member {name!r} in the artifact")
    return name


def _check_model(where: str, value: object) -> None:
    model = as_record(where, value, ["name", "architecture"], None)
    for key in ("name", "architecture"):
        as_text(f"{where}: {key}", model[key], limit=512)
    for key in _MODEL_SIZES:
        if model.get(key) is not None:
            as_int(f"{where}: {key}", model[key], high=2**40)


def _check_target(where: str, value: object, members: Mapping[str, int]) -> None:
    target = as_record(where, value, ["name", "variants"], None)
    as_name(f"{where}: name", target["name"])
    if target.get("page_size") is not None:
        as_int(f"{where}: page_size", target["page_size"], low=1, high=1 << 20)
    for index, item in enumerate(as_list(f"{where}: variants", target["variants"])):
        place = f"{where}: variant {index}"
        variant = as_record(place, item, ["isa", "library", "symbols"], None)
        as_name(f"{place}: isa", variant["isa"])
        _check_member(f"{place}: library", variant["library"], members)
        for symbol in as_list(f"{place}: symbols", variant["symbols"]):
            as_name(f"{place}: symbol", symbol)


def _check_weight(where: str, value: object, members: Mapping[str, int]) -> None:
    """Its bytes are a blob, or made on load: as its ``fill`` says, or by ``expand`` from a blob."""
    weight = as_record(where, value, ["bytes", "dtype", "shape", "layout", "sections"], None)
    size = as_int(f"{where}: bytes", weight["bytes"])
    as_name(f"{where}: dtype", weight["dtype"])
    if "fill" in weight:
        _check_fill(where, weight, size)
    else:
        stored = as_record(where, weight, ["blob", "sha256"], None)
        _check_blob(where, stored, size, members)
    as_text(f"{where}: layout", weight["layout"], limit=512)
    shape = as_list(f"{where}: shape", weight["shape"])
    if len(shape) > MAX_RANK:
        raise ArtifactError(f"{where}: expected at most {MAX_RANK} dimensions, got {len(shape)}")
    for extent in shape:
        as_int(f"{where}: shape", extent)
    for name, span in as_dict(f"{where}: sections", weight["sections"]).items():
        place = f"{where}: section {name}"
        start, length = (as_int(place, number) for number in as_list(place, span, 2))
        if start + length > size:
            raise ArtifactError(f"{place}: expected an end within {size}, got {start + length}")


def _check_fill(where: str, weight: Mapping[str, object], size: int) -> None:
    Fill.from_json(f"{where}: fill", weight["fill"])
    dtype = str(weight["dtype"])
    if dtype not in FILLED or size % FILLED[dtype]:
        known = ", ".join(FILLED)
        raise ArtifactError(f"{where}: expected a fill of {known}, got {size} bytes of {dtype}")


def _check_blob(
    where: str, weight: Mapping[str, object], size: int, members: Mapping[str, int]
) -> None:
    blob = _check_member(f"{where}: blob", weight["blob"], members)
    if "expand" in weight:
        dtype = str(weight["dtype"])
        check_expand(f"{where}: expand", weight["expand"], dtype, size, members[blob])
    elif size != members[blob]:
        raise ArtifactError(f"{where}: expected {size} bytes, got a blob of {members[blob]}")
    if blob != f"weights/{as_digest(f'{where}: sha256', weight['sha256'])}":
        raise ArtifactError(f"{where}: expected a blob named by its hash, got {blob!r}")


def _check_shards(where: str, value: object) -> None:
    shards = as_record(where, value, ["ranks", "rank"], None)
    ranks = as_int(f"{where}: ranks", shards["ranks"], low=1, high=1 << 16)
    as_int(f"{where}: rank", shards["rank"], high=ranks - 1)
