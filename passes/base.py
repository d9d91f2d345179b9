"""What a pass is: a frozen dataclass that edits a graph in place and says whether it did.

>>> from dataclasses import dataclass
>>> from typing import ClassVar
>>> @dataclass(frozen=True)
... class DoNothing(Pass):
...     name: ClassVar[str] = "do-nothing-example"
...     bound: int = 3
...     def run(self, graph: Graph) -> bool:
...         return False
>>> DoNothing(bound=4).as_text()
'do-nothing-example{bound=4}'
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from ..errors import PassError
from ..ir.graph import Graph
from ..ir.printer import attribute_text

PASSES: dict[str, type[Pass]] = {}
"""Every pass by its command-line name; defining a class adds it."""


@dataclass(frozen=True)
class Pass:
    """Base of all passes. Fields are options and print as ``name{option=value}``."""

    name: ClassVar[str] = ""
    keeps_numbers: ClassVar[bool] = True
    """The same inputs and parameters give the same outputs before and after."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if not cls.__dict__.get("name"):
            return
        if cls.name in PASSES and PASSES[cls.name].__qualname__ != cls.__qualname__:
            raise PassError(f"pass {cls.name}: defined twice")
        PASSES[cls.name] = cls

    def run(self, graph: Graph) -> bool:
        """Edit ``graph``; True when something changed."""
        raise PassError(f"pass {self.name}: has no run method")

    def as_text(self) -> str:
        """The form that `opt.parse_pipeline` reads back; options at their default are left out."""
        options = [
            f"{f.name}={attribute_text(getattr(self, f.name))}"
            for f in dataclasses.fields(self)
            if getattr(self, f.name) != f.default
        ]
        return f"{self.name}{{{', '.join(options)}}}" if options else self.name


def make_pass(name: str, options: Mapping[str, Any]) -> Pass:
    """A pass by its name; an unknown name or option raises `PassError`."""
    if name not in PASSES:
        raise PassError(f"pass {name!r}: expected one of {', '.join(sorted(PASSES))}")
    known = sorted(f.name for f in dataclasses.fields(PASSES[name]))
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise PassError(f"pass {name}: expected options among {known}, got {unknown}")
    try:
        return PASSES[name](**options)
    except TypeError as error:
        raise PassError(f"pass {name}: {error}") from error
