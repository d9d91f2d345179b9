"""Who is ahead: the best peer of each weight class, ratios, what was asked for, and tables."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sglk.bench.contest import SECONDS, Contender, Result, Scenario

SHOWN = ("prefill_tokens_per_s", "decode_tokens_per_s", "output_tokens_per_s", "ttft_s")
TITLES = ("prefill/s", "decode/s", "output/s", "first, s", "peak MB")


@dataclass(frozen=True)
class Demand:
    """Ours with ``bits`` must be ``factor`` times the best peer, of the same bits or of any."""

    scenario: Scenario
    figure: str
    factor: float
    bits: int
    any_peer: bool = False


def best(
    summary: dict[str, Result], contenders: Iterable[Contender], figure: str, bits: int | None
) -> tuple[str, float] | None:
    """The best of some contenders at a figure; ``bits`` None takes every class."""
    values = [
        (c.name, float(summary[c.name][figure]))
        for c in contenders
        if c.name in summary and summary[c.name][figure] and bits in (None, c.bits)
    ]
    if not values:
        return None
    pick = min if figure in SECONDS or figure == "peak_rss_bytes" else max
    return pick(values, key=lambda pair: pair[1])


def ratio(figure: str, ours: float, theirs: float) -> float:
    """Above 1 we are faster; of memory: how much more we take."""
    return theirs / ours if figure in SECONDS else ours / theirs


def ratios(summary: dict[str, Result], contenders: list[Contender]) -> dict[str, Result]:
    """For each of ours and each figure: to the best peer of its class, and to the best of all."""
    theirs = [c for c in contenders if not c.is_ours]
    found: dict[str, Result] = {}
    for ours in (c for c in contenders if c.is_ours and c.name in summary):
        found[ours.name] = {}
        for key, bits in (("class", ours.bits), ("any", None)):
            for figure in (*SHOWN, "itl_s", "peak_rss_bytes"):
                peer, value = best(summary, theirs, figure, bits), summary[ours.name][figure]
                if peer and value:
                    record = {"peer": peer[0], "ratio": ratio(figure, value, peer[1])}
                    found[ours.name].setdefault(figure, {})[key] = record
    return found


def verdict(demand: Demand, comparison: Result, contenders: list[Contender]) -> Result | None:
    """Whether a demand holds in the comparison of its scenario; None when nothing speaks to it."""
    if Scenario(**comparison["scenario"]) != demand.scenario:
        return None
    summary = comparison["medians"]
    mine = best(summary, [c for c in contenders if c.is_ours], demand.figure, demand.bits)
    bits = None if demand.any_peer else demand.bits
    peer = best(summary, [c for c in contenders if not c.is_ours], demand.figure, bits)
    if mine is None or peer is None:
        return None
    reached = ratio(demand.figure, mine[1], peer[1])
    return {
        "scenario": str(demand.scenario),
        "figure": demand.figure,
        "ours": mine[0],
        "value": mine[1],
        "peer": peer[0],
        "peer_value": peer[1],
        "ratio": reached,
        "wanted": demand.factor,
        "holds": reached >= demand.factor,
    }


def table_lines(comparison: Result, contenders: list[Contender]) -> list[str]:
    """One scenario: contenders by class, then ours against the best."""
    summary, shares = comparison["medians"], comparison.get("shares", {})
    mine = [len(name) + len(" / best of its bits") for name in comparison["ratios"]]
    wide = max([len(name) for name in summary] + mine) + 1
    lines = ["", str(Scenario(**comparison["scenario"]))]
    head = "".join(f"{title:>11}" for title in (*TITLES, "of limit"))
    lines.append(f"  {'':<{wide}}{'bits':>5}{head}")
    for each in sorted(contenders, key=lambda c: (c.bits or 99, not c.is_ours)):
        if each.name in summary:
            row = summary[each.name]
            memory = row["peak_rss_bytes"]
            cells = [*(row[figure] for figure in SHOWN), memory and memory / 1e6]
            share = shares.get(each.name, {}).get("decode")
            text = "".join(map(_cell, cells)) + (f"{share:>11.0%}" if share else f"{'-':>11}")
            lines.append(f"  {each.name:<{wide}}{each.bits or '?':>5}{text}")
    for name, figures in comparison["ratios"].items():
        for key, title in (("class", "best of its bits"), ("any", "best of all")):
            cells = [figures.get(f, {}).get(key, {}) for f in (*SHOWN, "peak_rss_bytes")]
            if any(cells):
                text = "".join(_cell(cell.get("ratio")) for cell in cells)
                lines.append(f"  {f'{name} / {title}':<{wide + 5}}{text}".rstrip())
    return lines + [f"  {name}: {why}" for name, why in comparison["faults"].items()]


def verdict_lines(verdicts: list[Result]) -> list[str]:
    lines = ["", "what was asked for"] if verdicts else []
    for v in verdicts:
        word = "holds" if v["holds"] else "MISSED"
        lines.append(
            f"  {word:<7}{v['scenario']}: {v['ours']} {_cell(v['value']).strip()} {v['figure']} is "
            f"{v['ratio']:.2f}x {v['peer']} ({_cell(v['peer_value']).strip()}), "
            f"wanted {v['wanted']:.2f}x"
        )
    return lines


def _cell(value: Any) -> str:
    if value is None:
        return f"{'-':>11}"
    return f"{value:>11.0f}" if value >= 100 else f"{value:>11.3g}"
