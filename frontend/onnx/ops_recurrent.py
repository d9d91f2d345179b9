"""RNN, GRU and LSTM, step after step: the number of steps is known, lengths of sequences need not
be."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from .registry import Node, Tensor, Value, op

MAX_STEPS = 1024
"""Steps that are written out one after the other."""
State = tuple[Tensor, ...]
Function = Callable[[Tensor], Tensor]
_DEFAULTS = {
    "Affine": (1.0, 0.0),
    "LeakyRelu": (0.01, 0.0),
    "ThresholdedRelu": (1.0, 0.0),
    "ScaledTanh": (1.0, 1.0),
    "HardSigmoid": (0.2, 0.5),
    "Elu": (1.0, 0.0),
}
"""alpha and beta of the functions that have them."""
_ALPHA_ONLY = ("LeakyRelu", "ThresholdedRelu", "Elu")
_FUNCTIONS: dict[str, Callable[[Tensor, float, float], Tensor]] = {
    "relu": lambda x, a, b: torch.relu(x),
    "tanh": lambda x, a, b: torch.tanh(x),
    "sigmoid": lambda x, a, b: torch.sigmoid(x),
    "affine": lambda x, a, b: a * x + b,
    "leakyrelu": lambda x, a, b: torch.where(x >= 0, x, a * x),
    "thresholdedrelu": lambda x, a, b: torch.where(x >= a, x, torch.zeros_like(x)),
    "scaledtanh": lambda x, a, b: a * torch.tanh(b * x),
    "hardsigmoid": lambda x, a, b: (a * x + b).clamp(0, 1),
    "elu": lambda x, a, b: F.elu(x, a),
    "softsign": lambda x, a, b: x / (1 + x.abs()),
    "softplus": lambda x, a, b: F.softplus(x),
}


@dataclass(frozen=True, eq=False)
class Direction:
    """One pass over the sequence: its weights, its functions, and which way it goes."""

    weight: Tensor
    recurrence: Tensor
    bias_in: Tensor
    bias_hidden: Tensor
    functions: Sequence[Function]
    backwards: bool
    peephole: Tensor | None = None


@op("RNN")
def rnn(
    node: Node,
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None = None,
    lengths: Tensor | None = None,
    h: Tensor | None = None,
) -> Value:
    def step(way: Direction, gates: Tensor, state: State) -> State:
        total = gates + F.linear(state[0], way.recurrence, way.bias_hidden)
        return (way.functions[0](total),)

    return _run(node, step, x, w, r, b, lengths, (h,), ("Tanh",))


@op("GRU")
def gru(
    node: Node,
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None = None,
    lengths: Tensor | None = None,
    h: Tensor | None = None,
) -> Value:
    """``linear_before_reset`` multiplies by the reset gate after the product, not before it."""
    after = bool(node.attrs.get("linear_before_reset", 0))

    def step(way: Direction, gates: Tensor, state: State) -> State:
        (old,) = state
        size = old.shape[-1]
        f, g = way.functions
        parts = F.linear(old, way.recurrence[: 2 * size], way.bias_hidden[: 2 * size])
        update, reset = f(gates[:, : 2 * size] + parts).chunk(2, -1)
        weight, bias = way.recurrence[2 * size :], way.bias_hidden[2 * size :]
        hidden = (
            reset * F.linear(old, weight, bias) if after else F.linear(reset * old, weight, bias)
        )
        new = g(gates[:, 2 * size :] + hidden)
        return ((1 - update) * new + update * old,)

    return _run(node, step, x, w, r, b, lengths, (h,), ("Sigmoid", "Tanh"))


@op("LSTM")
def lstm(
    node: Node,
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None = None,
    lengths: Tensor | None = None,
    h: Tensor | None = None,
    c: Tensor | None = None,
    peepholes: Tensor | None = None,
) -> Value:
    """Gates in the order input, output, forget, cell; peepholes let gates see the cell."""
    coupled = bool(node.attrs.get("input_forget", 0))

    def step(way: Direction, gates: Tensor, state: State) -> State:
        hidden, cell = state
        f, g, out = way.functions
        total = gates + F.linear(hidden, way.recurrence, way.bias_hidden)
        i, o, forget, new = total.chunk(4, -1)
        if way.peephole is not None:
            look_i, look_o, look_f = way.peephole.chunk(3)
            i, forget = i + look_i * cell, forget + look_f * cell
        i = f(i)
        kept = 1 - i if coupled else f(forget)
        cell = kept * cell + i * g(new)
        if way.peephole is not None:
            o = o + look_o * cell
        return f(o) * out(cell), cell

    names = ("Sigmoid", "Tanh", "Tanh")
    return _run(node, step, x, w, r, b, lengths, (h, c), names, peepholes)


def _run(
    node: Node,
    step: Callable[[Direction, Tensor, State], State],
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None,
    lengths: Tensor | None,
    initial: tuple[Tensor | None, ...],
    names: Sequence[str],
    peepholes: Tensor | None = None,
) -> Value:
    """Both directions, and the layout that the node asks for."""
    batch_first = bool(node.attrs.get("layout", 0))
    x = x.transpose(0, 1) if batch_first else x
    ways = list(_directions(node, w, r, b, names, peepholes))
    steps, batch = x.shape[0], x.shape[1]
    if not isinstance(steps, int) or steps > MAX_STEPS:
        node.refuse(f"expected a known number of at most {MAX_STEPS} steps, got {steps}")
    everything, last = [], []
    for place, way in enumerate(ways):
        start = tuple(
            torch.zeros((batch, r.shape[-1]), dtype=x.dtype)
            if given is None
            else given.transpose(0, 1)[place]
            if batch_first
            else given[place]
            for given in initial
        )
        outputs, state = _pass(way, step, x, start, lengths)
        everything.append(outputs)
        last.append(state)
    y = torch.stack(everything, 1)
    finals = [torch.stack(parts, 0) for parts in zip(*last, strict=True)]
    if batch_first:
        y = y.permute(2, 0, 1, 3)
        finals = [final.transpose(0, 1) for final in finals]
    return (y, *finals)


def _pass(
    way: Direction,
    step: Callable[[Direction, Tensor, State], State],
    x: Tensor,
    state: State,
    lengths: Tensor | None,
) -> tuple[Tensor, State]:
    """Beyond the end of its sequence a state stays, and outputs are zeros."""
    gates = F.linear(x, way.weight, way.bias_in)
    steps = x.shape[0]
    outputs: list[Tensor] = [x] * steps
    for t in reversed(range(steps)) if way.backwards else range(steps):
        new = step(way, gates[t], state)
        if lengths is None:
            state, outputs[t] = new, new[0]
            continue
        inside = (lengths > t).unsqueeze(-1)
        state = tuple(torch.where(inside, n, o) for n, o in zip(new, state, strict=True))
        outputs[t] = torch.where(inside, new[0], torch.zeros_like(new[0]))
    return torch.stack(outputs, 0), state


def _directions(
    node: Node,
    w: Tensor,
    r: Tensor,
    b: Tensor | None,
    names: Sequence[str],
    peepholes: Tensor | None,
) -> Iterator[Direction]:
    kind = node.attrs.get("direction", "forward")
    if kind not in ("forward", "reverse", "bidirectional"):
        node.refuse(f"expected direction forward, reverse or bidirectional, got {kind!r}")
    ways = [False, True] if kind == "bidirectional" else [kind == "reverse"]
    functions = _functions(node, list(names) * len(ways))
    for place, backwards in enumerate(ways):
        size = w.shape[1]
        bias = torch.zeros(2 * size, dtype=w.dtype) if b is None else b[place]
        own = functions[place * len(names) : (place + 1) * len(names)]
        look = None if peepholes is None else peepholes[place]
        yield Direction(w[place], r[place], bias[:size], bias[size:], own, backwards, look)


def _functions(node: Node, defaults: Sequence[str]) -> list[Function]:
    """The named functions; alphas and betas go to those that take them, in order."""
    names = node.attrs.get("activations") or list(defaults)
    alphas = list(node.attrs.get("activation_alpha", []))
    betas = list(node.attrs.get("activation_beta", []))
    known = {name.lower(): name for name in _DEFAULTS}
    found: list[Function] = []
    for name in names:
        key = str(name).lower()
        if key not in _FUNCTIONS:
            node.refuse(f"expected an activation of ONNX's list, got {name}")
        alpha, beta = _DEFAULTS.get(known.get(key, ""), (0.0, 0.0))
        if key in known:
            alpha = alphas.pop(0) if alphas else alpha
            takes_beta = known[key] not in _ALPHA_ONLY
            beta = betas.pop(0) if betas and takes_beta else beta
        found.append(_clipped(_FUNCTIONS[key], alpha, beta, node.attrs.get("clip", 0.0)))
    return found


def _clipped(
    function: Callable[[Tensor, float, float], Tensor], alpha: float, beta: float, clip: float
) -> Function:
    if not clip:
        return lambda x: function(x, alpha, beta)
    return lambda x: function(x.clamp(-clip, clip), alpha, beta)
