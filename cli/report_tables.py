"""The tables of the lowering report: operators, kernels, vendor operators, facts of the chip."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from .report_html import badge, bar, bytes_text, cell, code, row, table, tile_text, time_text

Record = Mapping[str, Any]


def ops_section(report: Record) -> str:
    total = sum(op["prefill"]["seconds"] * op["count"] for op in report["ops"]) or 1.0
    compared = report.get("compared", {})
    has_other = bool(compared) and not compared["error"]
    heads = ["op", "row", "", "tile, few tokens", "tile, many", "bound by", "time, many", "share"]
    if has_other:
        heads.append(f"{compared['target']}'s tile")
    rows = [_op_row(op, total, has_other) for op in report["ops"]]
    note = (
        "<p class=note>One line for each op, row and types; open a line for the rows that were "
        "passed over and why. Tiles are M × N × K.</p>"
    )
    return f"<section><h2>Operators</h2>{note}{table(heads, rows, 'ops')}</section>\n"


def _op_row(op: Record, total: float, has_other: bool) -> str:
    share = op["prefill"]["seconds"] * op["count"] / total
    over = "".join(
        f"<li><code>{escape(each['row'])}</code> {escape(each['reason'])}</li>"
        for each in op["passed_over"]
    )
    why = f"<p>Chosen: {escape(op['why'])}.</p>" if op["why"] else ""
    details = (
        f"<details><summary><code>{escape(op['op'])}</code> {escape(op['problem'])} "
        f"<span class=count>×{op['count']}</span></summary><p class=types>{escape(op['types'])}</p>"
        f"{why}{f'<p>Passed over:</p><ul>{over}</ul>' if over else ''}"
        f"{_place(op['source'])}</details>"
    )
    cells = (
        cell(details),
        cell(f"<code>{escape(op['row'])}</code>"),
        cell(badge(op["kind"], op["kind"])),
        cell(tile_text(op["decode"]["tiles"]), "num"),
        cell(tile_text(op["prefill"]["tiles"]), "num"),
        cell(escape(op["prefill"]["bound"]) if op["kind"] != "view" else ""),
        cell(time_text(op["prefill"]["seconds"]) if op["kind"] != "view" else "", "num"),
        cell(bar(share) if op["kind"] != "view" else ""),
        *((cell(_other(op), "num"),) if has_other else ()),
    )
    return row(*cells)


def _place(source: str) -> str:
    return f"<p class=types>first at {escape(source)}</p>" if source else ""


def _other(op: Record) -> str:
    other = op.get("compared")
    return tile_text(other["prefill"]["tiles"]) if other else "–"


def kernels_section(report: Record) -> str:
    rows = [_kernel_row(k, report) for k in sorted(report["kernels"], key=_kernel_key)]
    heads = (
        "kernel", "tokens", "tile", "on chip", "programs", "each", "time", "bound by",
        "runner-up, and what beat it",
    )  # fmt: skip
    unit = report["target"]["programs"]
    note = (
        f"<p class=note>On chip: bytes used of those available. Each: programs that one of the "
        f"{unit} units runs one after the other. Times are for the row count a tile was chosen "
        "for.</p>"
    )
    return f"<section><h2>Kernels</h2>{note}{table(heads, rows, 'kernels')}</section>\n"


def _kernel_key(kernel: Record) -> tuple[str, str, int]:
    constants = kernel["constants"]
    sizes = "x".join(f"{constants[name]:>9}" for name in "NK" if name in constants)
    bounds = [bound or 1 << 40 for bound in kernel["buckets"]]
    return kernel["function"], sizes, min(bounds)


def _kernel_row(kernel: Record, report: Record) -> str:
    tile = kernel["tile"]
    constants = kernel["constants"]
    size = " × ".join(str(constants[name]) for name in "NK" if name in constants)
    blocks = {n: v for n, v in constants.items() if n.startswith("BLOCK")}
    refused = "".join(f"<li>{escape(reason)}</li>" for reason in (tile or {}).get("refused", []))
    more = (tile or {}).get("refused_count", 0) - len((tile or {}).get("refused", []))
    refused += f"<li>and {more} more</li>" if more > 0 else ""
    options = ", ".join(f"{n}={v}" for n, v in constants.items())
    details = (
        f"<details><summary><code>{escape(kernel['function'].rpartition('.')[2])}</code> {size}"
        f"</summary><p class=types>{escape(kernel['symbol'])}<br>{escape(options)}</p>"
        f"{f'<p>Refused tiles:</p><ul>{refused}</ul>' if refused else ''}</details>"
    )
    bounds = ", ".join(f"≤ {bound}" if bound else "more" for bound in kernel["buckets"])
    if tile is None:
        cells = (
            cell(details), cell(bounds, "num"), cell(tile_text([blocks]), "num"), cell(""),
            cell(kernel["programs"], "num"), *(cell("") for _ in range(4)),
        )  # fmt: skip
        return row(*cells)
    used = tile["on_chip_bytes"] / tile["on_chip_limit"] if tile["on_chip_limit"] else 0.0
    most = f"{bytes_text(tile['on_chip_limit'])} {escape(tile['on_chip_name'])}"
    chip = f"{bytes_text(tile['on_chip_bytes'])} of {most}"
    cells = (
        cell(details),
        cell(bounds, "num"),
        cell(tile_text([tile["tile"]]), "num"),
        cell(f"{chip}{bar(min(1.0, used))}", "chip"),
        cell(tile["programs"], "num"),
        cell(tile["per_unit"], "num"),
        cell(time_text(tile["seconds"]), "num"),
        cell(escape(tile["bound"])),
        cell(escape(tile["runner_up"])),
    )
    return row(*cells)


def library_section(report: Record) -> str:
    """Vendor operators and what is denied; nothing where a target names none."""
    if not report.get("library") and not report.get("denied"):
        return ""
    rows = [
        row(
            cell(code(each["op"])),
            cell(code(each["function"])),
            cell(escape(", ".join(arg["name"] for arg in each["arguments"])), "types"),
            cell(escape("; ".join(each["constraints"]))),
        )
        for each in report.get("library", [])
    ]
    denied = "".join(
        f"<li><code>{escape(each['op'])}</code> by <code>{escape(each['name'])}</code>: "
        f"{escape(each['reason'])}</li>"
        for each in report.get("denied", [])
    )
    shown = table(("op", "operator", "arguments", "constraints"), rows)
    return (
        "<section><h2>Vendor operators</h2><p class=note>Not chosen until an adapter is built on a "
        f"machine with the vendor's SDK.</p>{shown}<h3>Never used</h3>"
        f"<ul class=plain>{denied}</ul></section>\n"
    )


def facts_section(report: Record) -> str:
    facts = report.get("facts", [])
    if not facts:
        return ""
    rows = [
        row(
            cell(code(fact["name"])),
            cell(escape(_value(fact["value"])), "num"),
            cell(escape(fact["unit"])),
            cell(badge(fact["confidence"], fact["confidence"])),
            cell(escape(fact["source"])),
        )
        for fact in facts
    ]
    shown = table(("fact", "value", "unit", "confidence", "source"), rows, "facts")
    return (
        "<section><h2>Facts of the chip</h2><p class=note>Facts of low or unknown confidence are "
        "configuration: replace them by measured ones and read this page again.</p>"
        f"<details class=all><summary>all {len(facts)} facts</summary>{shown}</details></section>\n"
    )


def _value(value: object) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(
            "×".join(map(str, v)) if isinstance(v, list | tuple) else str(v) for v in value
        )
    return f"{value:.4g}" if isinstance(value, float) else f"{value}"
