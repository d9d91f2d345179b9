"""An ONNX file, bytes or `ModelProto` made ready to be evaluated.

Checked by onnx's own checker, brought to opset 13 or later, and its own functions written out.
Every fault is one `FrontendError` sentence; ops without a function are reported together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.checker
import onnx.inliner
import onnx.version_converter
import torch
from google.protobuf.message import DecodeError
from onnx import numpy_helper

from ...errors import FrontendError
from . import ops
from .functions import body_of, has_body, schema_of
from .registry import OPS, TORCH_TYPES, Subgraph

__all__ = ["Model", "all_nodes", "attribute_value", "op_key", "ops", "read_model", "tensor_of"]

MIN_OPSET = 13
_ATTRIBUTE = onnx.AttributeProto


@dataclass(frozen=True, eq=False)
class Model:
    """A model whose nodes are all known ops."""

    proto: onnx.ModelProto
    name: str
    folder: Path | None
    """Where external data lie."""
    opsets: dict[str, int]

    def tensor(self, proto: onnx.TensorProto) -> torch.Tensor:
        """The numbers of an initializer; those in other files are mapped, not read."""
        return tensor_of(proto, self.folder)


def read_model(source: Any, name: str = "onnx") -> Model:
    """A path, bytes, or a `ModelProto`."""
    proto, folder = _load(source)
    where = str(source) if isinstance(source, str | Path) else name
    if not proto.HasField("graph") or not proto.opset_import:
        raise FrontendError(f"{where}: expected an ONNX model, got one without a graph or opset")
    _check(proto, source, where)
    proto = _modern(proto, where)
    if proto.functions:
        proto = onnx.inliner.inline_local_functions(proto)
    opsets = {"" if o.domain == "ai.onnx" else o.domain: o.version for o in proto.opset_import}
    _refuse_unknown(proto, opsets, where)
    label = Path(source).stem if isinstance(source, str | Path) else proto.graph.name or name
    return Model(proto, label, folder, opsets)


def _load(source: Any) -> tuple[onnx.ModelProto, Path | None]:
    if isinstance(source, onnx.ModelProto):
        return source, None
    if isinstance(source, bytes):
        return _parsed(source, "bytes"), None
    path = Path(source)
    if not path.is_file():
        raise FrontendError(f"{path}: expected an .onnx file, got no such file")
    return _parsed(path.read_bytes(), str(path)), path.parent


def _parsed(data: bytes, where: str) -> onnx.ModelProto:
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except DecodeError as error:
        raise FrontendError(f"{where}: expected an ONNX model, got {error}") from error
    return proto


def _check(proto: onnx.ModelProto, source: Any, where: str) -> None:
    """Data in other files are checked where they are read, so a path is given only for them."""
    on_disk = isinstance(source, str | Path)
    try:
        onnx.checker.check_model(str(source) if on_disk else proto)
    except onnx.checker.ValidationError as error:
        text = " ".join(str(error).split())[:300]
        raise FrontendError(f"{where}: expected a valid ONNX model, got: {text}") from error


def _modern(proto: onnx.ModelProto, where: str) -> onnx.ModelProto:
    """The model in opset 13 or later: earlier ones kept sizes in attributes."""
    opset = next((o.version for o in proto.opset_import if o.domain in ("", "ai.onnx")), None)
    if opset is None or opset >= MIN_OPSET:
        return proto
    if opset < 9 and any(node.op_type == "Scan" for node in all_nodes(proto.graph)):
        raise FrontendError(
            f"{where}: expected opset 9 or later, got {opset}, where Scan has a batch axis "
            "(export the model again)"
        )
    try:
        converted = onnx.version_converter.convert_version(proto, MIN_OPSET)
    except (RuntimeError, onnx.version_converter.ConvertError) as error:
        text = " ".join(str(error).split())[:200]
        raise FrontendError(
            f"{where}: expected opset {MIN_OPSET} or later, got {opset}, which onnx cannot "
            f"convert: {text} (export the model again)"
        ) from error
    assert isinstance(converted, onnx.ModelProto)
    return converted


# Ops ----------------------------------------------------------------------------------------


def all_nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Nodes of a graph and of those inside its nodes."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from all_nodes(inner)


def op_key(node: onnx.NodeProto) -> tuple[str, str]:
    """The node's key in `OPS`."""
    return "" if node.domain == "ai.onnx" else node.domain, node.op_type


def _unknown(
    nodes: Iterable[onnx.NodeProto], opsets: Mapping[str, int]
) -> Iterator[tuple[tuple[str, str], str]]:
    """Ops without a function, with the name of the node; an op that ONNX defines by other ops is
    looked into as far as the definition does not depend on the types of its inputs."""
    for node in nodes:
        key, label = op_key(node), node.name or next(iter(node.output), "")
        if key in OPS:
            continue
        schema = schema_of(key[1], opsets.get(key[0], 1), key[0])
        if not has_body(schema):
            yield key, label
        elif schema.has_function:
            body = body_of(schema, node, opsets.get(key[0], 1), ())
            inner = body.node if body is not None else ()
            yield from ((below, label) for below, _ in _unknown(inner, opsets))


def _refuse_unknown(proto: onnx.ModelProto, opsets: Mapping[str, int], where: str) -> None:
    unknown: dict[tuple[str, str], list[str]] = {}
    for key, label in _unknown(all_nodes(proto.graph), opsets):
        unknown.setdefault(key, []).append(label)
    if not unknown:
        return
    listed = "; ".join(
        f"{f'{domain}.' if domain else ''}{op} x{len(names)} ({', '.join(names[:3])})"
        for (domain, op), names in sorted(unknown.items())
    )
    raise FrontendError(
        f"{where}: expected ops that sglk has a function for, got {len(unknown)} kinds without: "
        f"{listed} (change the model there, or add them with @op in frontend/onnx/ops_*.py)"
    )


# Values -------------------------------------------------------------------------------------


def tensor_of(proto: onnx.TensorProto, folder: Path | None = None) -> torch.Tensor:
    """A tensor's numbers in torch's type of the same name."""
    if proto.data_type not in TORCH_TYPES:
        kind = onnx.TensorProto.DataType.Name(proto.data_type)
        raise FrontendError(f"tensor {proto.name}: expected numbers or bools, got {kind}")
    dtype = TORCH_TYPES[proto.data_type]
    if proto.data_location == onnx.TensorProto.EXTERNAL:
        return _external(proto, folder, dtype)
    return from_numpy(numpy_helper.to_array(proto)).to(dtype)


def from_numpy(array: np.ndarray) -> torch.Tensor:
    """A tensor of its own; NumPy's extension types (float8, int4) become a type that holds them."""
    plain = np.array(array, order="C")
    if plain.dtype.name == "bfloat16":
        return torch.from_numpy(plain.view(np.int16)).view(torch.bfloat16)
    elem_type = onnx.helper.np_dtype_to_tensor_dtype(plain.dtype)
    if plain.dtype.kind == "V" or plain.dtype.isbuiltin != 1:
        holder = np.uint8 if elem_type in (21, 25) else np.int8 if elem_type in (22, 26) else "f4"
        plain = plain.astype(holder)
    return torch.from_numpy(plain)


def _external(proto: onnx.TensorProto, folder: Path | None, dtype: torch.dtype) -> torch.Tensor:
    entries = {entry.key: entry.value for entry in proto.external_data}
    where = f"tensor {proto.name}: external data in {entries.get('location', 'no file')!r}"
    if folder is None:
        raise FrontendError(f"{where}: expected a model read from its file, got one in memory")
    path = (folder / entries.get("location", "")).resolve()
    if not path.is_relative_to(folder.resolve()) or not path.is_file():
        raise FrontendError(f"{where}: expected a file in the model's own folder, got none there")
    count = int(np.prod(proto.dims, dtype=np.int64))
    offset, size = int(entries.get("offset", 0)), count * dtype.itemsize
    if offset < 0 or offset + size > path.stat().st_size:
        raise FrontendError(
            f"{where}: expected {size} bytes at {offset}, got a file of {path.stat().st_size}"
        )
    if not size:
        return torch.empty(tuple(proto.dims), dtype=dtype)
    data = np.memmap(path, np.uint8, "c", offset, (size,))
    return torch.from_numpy(data).view(dtype).reshape(tuple(proto.dims))


def attribute_value(attribute: onnx.AttributeProto) -> Any:
    """The Python value of a node's attribute."""
    kind = attribute.type
    if kind == _ATTRIBUTE.GRAPH:
        return _subgraph(attribute.name, attribute.g)
    if kind == _ATTRIBUTE.TENSOR:
        return tensor_of(attribute.t)
    if kind == _ATTRIBUTE.SPARSE_TENSOR:
        return dense(attribute.sparse_tensor)
    if kind in (_ATTRIBUTE.TYPE_PROTO, _ATTRIBUTE.TYPE_PROTOS):
        return attribute.tp if kind == _ATTRIBUTE.TYPE_PROTO else list(attribute.type_protos)
    value = onnx.helper.get_attribute_value(attribute)
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if kind == _ATTRIBUTE.STRINGS:
        return [text.decode("utf-8", "replace") for text in value]
    if kind == _ATTRIBUTE.TENSORS:
        return [tensor_of(tensor) for tensor in value]
    if kind == _ATTRIBUTE.GRAPHS:
        return [_subgraph(attribute.name, graph) for graph in value]
    return list(value) if kind in (_ATTRIBUTE.INTS, _ATTRIBUTE.FLOATS) else value


def _subgraph(name: str, graph: onnx.GraphProto) -> Subgraph:
    inputs, outputs = (tuple(v.name for v in side) for side in (graph.input, graph.output))
    return Subgraph(name, graph, inputs, outputs)


def dense(sparse: onnx.SparseTensorProto) -> torch.Tensor:
    """A sparse constant, with its zeros."""
    values, indices = tensor_of(sparse.values), tensor_of(sparse.indices)
    flat = indices.dim() == 1
    dense = torch.zeros(tuple(sparse.dims), dtype=values.dtype)
    if flat:
        dense.view(-1)[indices] = values
    else:
        dense[tuple(indices.T)] = values
    return dense
