"""Messages to a prompt, with the model's own Jinja template, rendered as transformers does.

Templates come with models, so they are foreign code: they run in Jinja's immutable sandbox, see
plain data only, and an error in one is an error of the request.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import ArtifactError, RequestError

if TYPE_CHECKING:
    import jinja2

Message = Mapping[str, Any]
_TEMPLATE_FAULTS = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
"""What the expressions of a template can raise besides Jinja's own errors."""
_REASONING = ("reasoning_content", "thinking", "reasoning")
"""Names under which clients send a message's reasoning; templates read the first two."""


@dataclasses.dataclass(frozen=True)
class SpecialTokens:
    """What templates know as ``bos_token`` and ``eos_token``; empty when the model has none."""

    bos_token: str = ""
    eos_token: str = ""


class ChatTemplate:
    """A template, compiled at once or, unless ``checked``, when it is first used: that loads Jinja,
    which a prompt without messages has no need of.

    >>> template = ChatTemplate("{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}")
    >>> template.render([{"role": "user", "content": "hi"}])
    '[user]hi'
    """

    def __init__(
        self, source: str, tokens: SpecialTokens | None = None, *, checked: bool = True
    ) -> None:
        self._source = source
        self._tokens = tokens or SpecialTokens()
        if checked:
            _ = self._template

    @functools.cached_property
    def _template(self) -> jinja2.Template:
        import jinja2

        try:
            return _environment().from_string(self._source)
        except jinja2.TemplateError as error:
            raise ArtifactError(f"chat template: expected valid Jinja, got: {error}") from error

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> str:
        """The prompt's text. It holds its own special tokens: encode it without adding any."""
        import jinja2

        context = {
            "messages": _checked_messages(messages),
            "tools": _plain(tools) if tools else None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
            **dataclasses.asdict(self._tokens),
            **_plain(variables),
        }
        try:
            return self._template.render(context)
        except (jinja2.TemplateError, *_TEMPLATE_FAULTS) as error:
            raise RequestError(f"chat template: the model's template refused: {error}") from error


def _environment() -> jinja2.Environment:
    import jinja2
    import jinja2.ext
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(jinja2.ext.Extension):
        """``{% generation %}`` marks text for training; here it is just its body."""

        tags = {"generation"}  # noqa: RUF012 (Jinja declares it so)

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def raise_exception(message: str) -> None:
        raise jinja2.TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter escapes HTML, which no model was trained on."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _strftime_now(pattern: str) -> str:
    return datetime.datetime.now().strftime(pattern)


def _checked_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    if isinstance(messages, str | Mapping) or not isinstance(messages, Sequence) or not messages:
        raise RequestError(
            f"messages: expected a list of at least one message, got {type(messages).__name__}"
            + (" of length 0" if isinstance(messages, Sequence) and not messages else "")
        )
    return [_checked_message(message, at) for at, message in enumerate(messages)]


def _checked_message(message: object, at: int) -> dict[str, Any]:
    where = f"messages[{at}]"
    if not isinstance(message, Mapping):
        raise RequestError(
            f"{where}: expected a mapping with role and content, got {message!r:.80}"
        )
    if not isinstance(message.get("role"), str):
        raise RequestError(f"{where}: expected a role, got {message.get('role')!r:.80}")
    # Clients send content=None beside tool calls; templates would print "None".
    plain = {str(key): _plain(value) for key, value in message.items() if value is not None}
    reasoning = next((plain[key] for key in _REASONING if key in plain), None)
    if reasoning is not None:
        plain = {"thinking": reasoning, **plain, "reasoning_content": reasoning}
    return plain


def _plain(value: Any) -> Any:
    """Rebuild from plain JSON types, so that a template can call no method of a rich object."""
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    for kind in (str, int, float):
        if isinstance(value, kind):
            return kind(value)
    return f"<{type(value).__name__}>"
