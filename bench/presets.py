"""Named sets of scenarios, and what is asked of ours in them."""

from __future__ import annotations

from sglk.bench.contest import Scenario
from sglk.bench.standings import Demand

ALONE = {prompt: Scenario(prompt, 128, 1) for prompt in (16, 512, 2048)}
SIXTEEN = {prompt: Scenario(prompt, 128, 16) for prompt in (16, 512)}
SHARED = Scenario(1056, 128, 16, 1024)

SCENARIOS = {
    "quick": (ALONE[16], ALONE[512]),
    "full": (*ALONE.values(), *SIXTEEN.values(), SHARED),
}

DECODE, PREFILL, OUTPUT = "decode_tokens_per_s", "prefill_tokens_per_s", "output_tokens_per_s"
DEMANDS = (
    Demand(ALONE[16], DECODE, 1.25, bits=4),
    Demand(SIXTEEN[16], DECODE, 1.25, bits=4, any_peer=True),
    # a prompt in front may cost some of the lead, never all of it
    Demand(ALONE[512], DECODE, 1.0, bits=4),
    Demand(ALONE[2048], DECODE, 1.0, bits=4),
    Demand(SIXTEEN[512], DECODE, 1.0, bits=4, any_peer=True),
    Demand(ALONE[512], PREFILL, 1.1, bits=4, any_peer=True),
    Demand(ALONE[2048], PREFILL, 1.1, bits=4, any_peer=True),
    Demand(SHARED, OUTPUT, 1.2, bits=4, any_peer=True),
    Demand(ALONE[16], DECODE, 1.1, bits=16),
    Demand(SIXTEEN[16], DECODE, 1.1, bits=16),
)
FIRST_TOKEN_S = 0.4
"""From the start of the process to the first token of a short answer."""
MEMORY_ABOVE_LLAMA = 60e6
"""Bytes that our peak may be above llama.cpp's."""
SOAK_LOSS = 0.03
"""Share of speed that an hour of mixed load may cost."""
