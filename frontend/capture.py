"""A Hugging Face causal LM, built from its config and captured with a symbolic token count.

No weight is ever allocated: parameters are fake tensors, which have a shape and a device but no
memory. Buffers that the model computes from its config (``inv_freq``) are real, because their
values become constants of the graph.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import re
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import Dim, ExportedProgram
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.overrides import TorchFunctionMode

from ..errors import FrontendError, SglkError
from ..ir.graph import Graph
from . import attention, experts, recurrence
from .captured import Progress, silent
from .context_limit import decided_minimum, plain_up_to
from .fx_convert import convert_program, symbol_names
from .rope_length import fixed_frequencies

EXAMPLE_TOKENS = 7  # torch specialises sizes 0 and 1, and nothing in a model is 7 by accident
ASKS_VALUES = (
    "the model's code asks for values while it runs, such as which tokens an expert gets; what is "
    "computed must follow from sizes"
)
_INPUTS = {"token_ids": {1: "tokens"}, "position_ids": {1: "tokens"}}
_LOGGERS = ("torch._subclasses.fake_tensor", "torch.fx.experimental.symbolic_shapes")
_PREFIX = "model_under_capture."
FIXES_LENGTH = (
    "the model's code depends on the number of tokens: loops over tokens or chunks that are no "
    "scan known here, and choices among keys, are not supported"
)


def capture_causal_lm(config: Any, progress: Progress | None = None) -> Graph:
    """Graph of ``token_ids, position_ids i32[1, tokens] -> logits f32[1, tokens, V]``.

    Parameters have their Hugging Face names; all float arithmetic is f32. Valid for one token and
    up to the context length of the config.
    """
    progress = progress or silent
    try:
        program = _exported(config, attention.IMPLEMENTATION, progress)
    except attention.OwnAttention as first:
        with attention.plain_masks():
            program = _spelled_out(config, first, progress)
    names = symbol_names(program, _INPUTS)
    return convert_program(
        program,
        name=config.model_type,
        symbols=names,
        rename=lambda name: name.removeprefix(_PREFIX),
        progress=progress,
    )


def _exported(config: Any, implementation: str, progress: Progress) -> ExportedProgram:
    progress("build", 0, 1)
    model = build_without_weights(config, implementation)
    progress("build", 1, 1)
    return export_causal_lm(model, progress)


def _spelled_out(config: Any, first: FrontendError, progress: Progress) -> ExportedProgram:
    """With attention as products and masks; a fault here keeps the fault of the first try."""
    try:
        return _exported(config, attention.SPELLED_OUT, progress)
    except FrontendError as error:
        error.add_note(f"tried with attention spelled out, because of: {first}")
        raise


class _EmptyOnMeta(TorchFunctionMode):
    """Memory asked for without values (every weight) is never allocated; the rest is real."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> torch.Tensor:
        options = dict(kwargs or {})
        if func is torch.empty:
            options["device"] = "meta"
        result: torch.Tensor = func(*args, **options)
        return result


def build_without_weights(
    config: Any, implementation: str = attention.IMPLEMENTATION
) -> torch.nn.Module:
    """The model of ``config`` in eval mode, its parameters fake f32 tensors on the CPU."""
    from transformers import AutoModelForCausalLM
    from transformers.initialization import no_init_weights

    attention.register()
    experts.register()
    with model_errors(config.model_type, "building it from its config"):
        with quiet(), _EmptyOnMeta(), no_init_weights():
            auto: Any = AutoModelForCausalLM
            model = auto.from_config(
                copy.deepcopy(config),
                attn_implementation=implementation,
                experts_implementation=attention.IMPLEMENTATION,
                dtype=torch.float32,
            )
        model.tie_weights()
    _fake_parameters(model)
    return model.eval()  # type: ignore[no-any-return]


def _fake_parameters(model: torch.nn.Module) -> None:
    """Replace every parameter by a fake tensor on the CPU, tied ones by the same one."""
    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    fakes: dict[torch.nn.Parameter, torch.nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is None:
                continue
            if parameter not in fakes:
                with mode:
                    empty = torch.empty(parameter.shape, dtype=parameter.dtype, device="cpu")
                fakes[parameter] = torch.nn.Parameter(empty, requires_grad=False)
            module._parameters[name] = fakes[parameter]


class _Step(torch.nn.Module):
    """The model as the graph sees it: token ids in, logits of every position out.

    A mask of ones says that nothing is padded; without one transformers looks for packed sequences.
    Positions are left to the model, since some count from an offset; what it counts with becomes
    the positions input where requests are mixed.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model_under_capture = model

    def forward(self, token_ids: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
        with decided_minimum():
            output = self.model_under_capture(
                input_ids=token_ids, attention_mask=torch.ones_like(token_ids), use_cache=False
            )
        return output.logits  # type: ignore[no-any-return]


def export_causal_lm(model: torch.nn.Module, progress: Progress = silent) -> ExportedProgram:
    """Export with ``tokens`` from 2 (torch takes 1 for a constant) to below the context length.

    Just there, a slice of a table is the whole table, and torch wants to know which it is.
    """
    parameter = next(iter(model.parameters()))
    mode = getattr(parameter, "fake_mode", contextlib.nullcontext())
    limit = _longest(model)
    tokens = Dim("tokens", min=2, max=limit - 1) if limit else Dim("tokens", min=2)
    config: Any = model.config
    hooks = _report_layers(model, progress)
    try:
        doing = "running it on fake tensors"
        with (
            model_errors(config.model_type, doing),
            torch.no_grad(),
            mode,
            quiet(),
            fixed_frequencies(model),
            recurrence.scans_as_ops(model),
        ):
            example = torch.zeros((1, EXAMPLE_TOKENS), dtype=torch.int64)
            return torch.export.export(
                _Step(model),
                (example, torch.zeros_like(example)),
                dynamic_shapes=({1: tokens}, {1: tokens}),
                strict=False,
            )
    finally:
        for hook in hooks:
            hook.remove()


def _longest(model: torch.nn.Module) -> int:
    """The context; one of None, 0 or less is a config's way to say "no limit", 0 here."""
    config = _text_config(model)
    stated = max(int(getattr(config, "max_position_embeddings", None) or 0), 0)
    plain = plain_up_to(config)
    limit = min(stated, plain) if stated and plain else stated or plain
    if 0 < limit <= EXAMPLE_TOKENS:
        raise FrontendError(
            f"expected a context of more than {EXAMPLE_TOKENS} tokens, got {limit} "
            "(max_position_embeddings, or what limits it)"
        )
    return limit


def _text_config(model: torch.nn.Module) -> Any:
    config: Any = model.config
    return config.get_text_config(decoder=True)


def _report_layers(model: torch.nn.Module, progress: Progress) -> list[Any]:
    """Hooks that report each layer of the longest module list as it is traced."""
    lists = [m for m in model.modules() if isinstance(m, torch.nn.ModuleList)]
    layers = max(lists, key=len, default=torch.nn.ModuleList())

    def report(done: int) -> Any:
        return lambda *_: progress("capture", done, len(layers))

    return [layer.register_forward_hook(report(i + 1)) for i, layer in enumerate(layers)]


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Hide what torch and transformers say about their own code: the user cannot act on it."""
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.disabled = True
        try:
            yield
        finally:
            for logger in loggers:
                logger.disabled = False


@contextlib.contextmanager
def model_errors(model_type: str, doing: str) -> Iterator[None]:
    """A model's code may raise anything; the user gets one sentence, with the cause chained."""
    try:
        yield
    except SglkError:
        raise
    except Exception as error:
        if isinstance(error, KeyError) and error.args == (attention.IMPLEMENTATION,):
            raise attention.OwnAttention(
                f"{model_type}: expected a model that calls transformers' AttentionInterface, got "
                "one with attention classes of its own (this architecture is not supported)"
            ) from error
        text, hint = _said(error)
        raise FrontendError(
            f"{model_type}: expected a model that can be captured with a symbolic token count, got "
            f"{type(error).__name__} while {doing}: {text[:400]} ({hint})"
        ) from error


def _said(error: Exception) -> tuple[str, str]:
    """An error of a model's code or of torch's export in short, and what it means."""
    text = " ".join(str(error).split())
    if "Constraints violated" in text:
        return _constraint(text), FIXES_LENGTH
    if "data-dependent expression" in text:
        question = text.partition("data-dependent expression ")[2].partition(" (unhinted")[0]
        place = re.search(r"Caused by: \((?:\S*/)?(\S+:\d+)", text)
        return f"{question}{f' at {place[1]}' if place else ''}", ASKS_VALUES
    return text.partition(" For more information")[0], "the cause has the model's source line"


def _constraint(text: str) -> str:
    """What torch could not hold for every length, in terms of ``tokens``, without its advice."""
    text = text.partition("- ")[2].partition(" Suggested fixes")[0].partition(" The error")[0]
    text = text.partition(" - ")[0].replace("L['token_ids'].size()[1]", "tokens")
    _, has_guard, guard = text.partition("generated guard ")
    if has_guard:
        return f"code that holds only where {guard.strip().rstrip('.')}"
    return "code that runs for one token count only" if "specialized" in text else text
