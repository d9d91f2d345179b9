"""The lowering report as one HTML page: no script, no network, readable on paper."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from importlib.resources import files
from typing import Any

from .report_html import badge, bar, bytes_text, cell, table, time_text
from .report_tables import facts_section, kernels_section, library_section, ops_section

Record = Mapping[str, Any]


def page_text(report: Record) -> str:
    """The whole page."""
    style = (files(__package__) / "report_page.css").read_text()
    body = _refused(report) if report.get("error") else _body(report)
    title = escape(f"{report.get('model', {}).get('name') or report['path']}: lowering report")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>\n{style}</style>\n</head>\n<body>\n{body}</body>\n</html>\n"
    )


def _refused(report: Record) -> str:
    return (
        f"<header><h1>{escape(report['path'])}</h1>"
        f'<p class="lead">for {escape(report["target"]["name"])}</p></header>\n'
        f'<section class="alert"><h2>The model was not captured</h2>'
        f"<p>{escape(report['error'])}</p></section>\n"
    )


def _body(report: Record) -> str:
    sections = (
        _header(report),
        _attention(report),
        _steps(report),
        ops_section(report),
        kernels_section(report),
        library_section(report),
        facts_section(report),
        _footer(report),
    )
    return "".join(sections)


# Sections -------------------------------------------------------------------------------------


def _header(report: Record) -> str:
    model, target, options = report["model"], report["target"], report["options"]
    taken = sum(op["count"] for op in report["ops"])
    missing = sum(op["count"] for op in report["missing"])
    prefill = report["buckets"][-1]
    cards = (
        ("ops with a row", f"{taken} of {taken + missing}"),
        ("kernels", len(report["kernels"])),
        ("weights", bytes_text(report["weight_bytes"])),
        (f"step of {report['buckets'][0]['tokens']}", time_text(report["buckets"][0]["seconds"])),
        (f"step of {prefill['tokens']}", time_text(prefill["seconds"])),
    )
    shown = "".join(f"<li><b>{value}</b><span>{name}</span></li>" for name, value in cards)
    chosen = (
        f"weights {options['dtype']}, cache {report['cache']}, products {options['activations']}"
    )
    return (
        f"<header><h1>{escape(model['name'])}</h1>"
        f'<p class="lead">{escape(model["architecture"])} for '
        f"<b>{escape(target['name'])}:{escape(target['arch'])}</b>: {escape(chosen)}. "
        "Nothing was compiled or run.</p>"
        f'<ul class="cards">{shown}</ul></header>\n'
    )


def _attention(report: Record) -> str:
    """What a reader has to know first."""
    lines = [
        f"<li>{badge('no row', 'bad')} <code>{escape(op['op'])}</code> ×{op['count']}: "
        f"{escape(_reasons(op) or 'the operator table has no row for it')}"
        f"{_place(op)}. What to do: {escape(op['todo'])}.</li>"
        for op in report["missing"]
    ]
    lines += [
        f"<li>{badge('on the host', 'warn')} <code>{escape(op['op'])}</code> ×{op['count']}: "
        f"{escape(_reasons(op) or 'the operator table has no row for it')}{_place(op)}. "
        "NumPy computes it, slowly; --strict refuses it.</li>"
        for op in report["on_host"]
    ]
    lines += [
        f"<li>{badge('limit', 'warn')} <code>{escape(op['op'])}</code> {escape(op['problem'])}: "
        f"{escape('; '.join(op['notes']))}</li>"
        for op in report["ops"]
        if op["notes"]
    ]
    compared = report.get("compared", {})
    if compared.get("error"):
        lines.append(
            f"<li>{badge('comparison', 'warn')} no choices of {escape(compared['target'])}: "
            f"{escape(compared['error'][:300])}</li>"
        )
    lines += [
        f"<li>{badge('host', 'info')} {escape(each['what'])}: {escape(each['why'])}</li>"
        for each in report.get("host", [])
    ]
    if not lines:
        return ""
    what = "ops that nothing here can do" if report["missing"] else "limits and fallbacks"
    return (
        f"<section><h2>Worth knowing: {what}</h2><ul class=plain>{''.join(lines)}</ul></section>\n"
    )


def _place(op: Record) -> str:
    return f" (first at {escape(op['source'])})" if op["source"] else ""


def _reasons(op: Record) -> str:
    return "; ".join(f"{over['row']}: {over['reason']}" for over in op["passed_over"])


def _steps(report: Record) -> str:
    rows = []
    longest = max(bucket["seconds"] for bucket in report["buckets"]) or 1.0
    for bucket in report["buckets"]:
        bound = f"up to {bucket['tokens_max']}" if bucket["tokens_max"] else "more"
        rows.append(
            f"<tr>{cell(bound)}{cell(bucket['tokens'], 'num')}{cell(bucket['launches'], 'num')}"
            f"{cell(bucket['kernels'], 'num')}{cell(time_text(bucket['seconds']), 'num')}"
            f"{cell(bar(bucket['seconds'] / longest))}</tr>"
        )
    heads = ("tokens of a step", "modelled for", "launches", "kernels", "time", "")
    context = report["sizes"]["context"]
    note = (
        f"<p class=note>One sequence with {context} tokens in the cache. Times are modelled from "
        "stated rates: they compare choices and predict nothing.</p>"
    )
    return f"<section><h2>Steps</h2>{note}{table(heads, rows, 'fit')}</section>\n"


def _footer(report: Record) -> str:
    passes = ", ".join(report["passes"])
    return (
        f"<footer><p>{escape(report['producer'])}; passes that changed the graph: "
        f"{escape(passes)}; {report['seconds']:.1f} s.</p></footer>\n"
    )
