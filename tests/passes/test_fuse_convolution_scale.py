"""Factors and summands by channel go into the convolution; others do not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sglk.ir.graph import Graph

Check = Callable[..., Graph]
HEAD = (
    "graph g(%x: f32[2, 4, 9], %q: f32[6, 1]) {\nparam %w: f32[6, 2, 3]\nparam %a: f32[6, 1]\n"
    "param %b: f32[1, 6, 1]\n"
)
ATTRIBUTES = "stride=(2,), before=(1,), after=(1,), dilation=(1,), groups=2"
CONVOLUTION = f"%c: f32[2, 6, 5] = convolution(%x, %w) {{{ATTRIBUTES}}}\n"


def test_a_batch_norm_goes_into_the_weight(check: Check) -> None:
    norm = "%s: f32[2, 6, 5] = mul(%c, %a)\n%y: f32[2, 6, 5] = add(%b, %s)\nreturn %y\n}"
    check(
        "fuse-convolution-scale",
        HEAD + CONVOLUTION + norm,
        f"""{HEAD}%k: f32[6] = reshape(%a) {{shape=(6,)}}
        %f: f32[6, 1, 1] = reshape(%k) {{shape=(6, 1, 1)}}
        %v: f32[6, 2, 3] = mul(%w, %f)
        %h: f32[6] = reshape(%b) {{shape=(6,)}}
        %y: f32[2, 6, 5] = convolution(%x, %v, %h) {{{ATTRIBUTES}, has_bias=True}}
        return %y
        }}""",
    )


REFUSED = {
    "computed": "%y: f32[2, 6, 5] = mul(%c, %q)",
    "read twice": "%s: f32[2, 6, 5] = mul(%c, %a)\n%y: f32[2, 6, 5] = add(%s, %c)",
    "another op": "%y: f32[2, 6, 5] = sub(%c, %a)",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_it_leaves_alone(name: str, check: Check) -> None:
    text = HEAD + CONVOLUTION + REFUSED[name] + "\nreturn %y\n}"
    for leaf in ("param %a: f32[6, 1]\n", "param %b: f32[1, 6, 1]\n"):
        if leaf.split()[1].rstrip(":") not in CONVOLUTION + REFUSED[name]:
            text = text.replace(leaf, "")
    check("fuse-convolution-scale", text)
