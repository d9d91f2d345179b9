"""What a compile gives back: a file with its report, and of a module something to call."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import RequestError

if TYPE_CHECKING:
    from .frontend.call_signature import CallSignature
    from .runtime import ForwardModel


@dataclass
class Compiled:
    """A finished compile: where the artifact is, and the report that is also inside it.

    Of a module that is no decoder it is called as the module is: with tensors it gives tensors,
    with arrays arrays, in the structure of the module's own result. The first call loads the
    artifact onto the device it was compiled for; `close` gives that back.
    """

    path: Path
    report: dict[str, Any]
    signature: CallSignature | None = None
    _model: ForwardModel | None = field(default=None, init=False, repr=False)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the artifact. Arguments that do not fit raise `RequestError`."""
        if self.signature is None:
            what = "got what generates text (use sglk.load) or an ONNX model (sglk.load_forward)"
            raise RequestError(f"{self.path}: expected a compiled torch module, {what}")
        given = self.signature.flatten(args, kwargs)
        model = self.load()
        has_tensors = any(hasattr(value, "detach") for value in given.values())
        arrays = {name: _array(given[name]) for name in model.input_names}
        found = model(**arrays)
        return self.signature.restore(found if isinstance(found, tuple) else (found,), has_tensors)

    def load(self) -> ForwardModel:
        """The artifact on its device, loaded once."""
        from .runtime import load_forward

        if self._model is None:
            self._model = load_forward(self.path)
        return self._model

    def close(self) -> None:
        """Give device and file back; the next call loads again."""
        model, self._model = self._model, None
        if model is not None:
            model.close()


def _array(value: Any) -> Any:
    """A tensor's numbers; NumPy has no bf16, which f32 holds exactly."""
    if not hasattr(value, "detach"):
        return value
    plain = value.detach().cpu()
    return (plain.float() if str(plain.dtype) == "torch.bfloat16" else plain).numpy()
