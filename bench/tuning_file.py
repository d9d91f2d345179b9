"""Times of products, as a benchmark on a GPU wrote them -> a tuning file that compiles read.

usage: python bench/tuning_file.py TIMES.json [MORE.json ...] --arch sm_90 --chip H200 \\
           -o targets/cuda/measured/h200.json

TIMES.json has {"results": [...]}, a way to compute a product each: n, k, gated, m, kernel, tile
(the constants), warps, stages, maps (whether the host made the tensor maps), norm (whether the
input was normalized on the way), err (relative error) and pdl (µs among dependent launches); of
weights of few bits also form (`WeightForm.key`) and x (what rows were multiplied as). Of
every product the few fastest are kept, those that normalize apart; a later file wins over an
earlier one. --add keeps what the output already has of other products.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from sglk.targets.cuda.measured import FORMAT, read_records

KEPT = 6
"""Ways of each product: the fastest, and what near products may prefer."""
MOST_ERROR = 6e-3
"""Relative error of a result in bf16; twice what rounding costs."""
Key = tuple[str, int, int, int, int]
PLAIN = {"form": "bf16", "x": "bf16"}
"""What records do not say."""


def records(results: Iterable[Mapping[str, Any]], is_normed: bool) -> list[dict[str, Any]]:
    """The fastest right ones of each product, in order of sizes."""
    by_product: dict[Key, dict[str, dict[str, Any]]] = {}
    for each in results:
        if bool(each["norm"]) != is_normed or not each["err"] <= MOST_ERROR:
            continue
        record = {
            **{name: each[name] for name in ("n", "k", "gated", "m")},
            "us": each["pdl"],
            "maps": each["maps"],
            "kernel": each["kernel"],
            "constants": constants(each),
            "num_warps": each["warps"],
            "num_stages": each["stages"],
        }
        record |= {
            name: each[name] for name, usual in PLAIN.items() if each.get(name, usual) != usual
        }
        key = key_of(record)
        way = json.dumps([record[name] for name in list(record)[5:]], sort_keys=True)
        by_product.setdefault(key, {})[way] = record
    return [
        record
        for key in sorted(by_product)
        for record in sorted(by_product[key].values(), key=lambda r: r["us"])[:KEPT]
    ]


def key_of(record: Mapping[str, Any]) -> Key:
    """The product of a record; plain weights first."""
    form = str(record.get("form", ""))
    return (form, record["n"], record["k"], record["gated"], record["m"])


def merged(old: Iterable[dict[str, Any]], new: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """New records, and old ones of products that have none."""
    known = {key_of(record) for record in new}
    return sorted([*(r for r in old if key_of(r) not in known), *new], key=key_of)


def constants(each: Mapping[str, Any]) -> dict[str, int]:
    """The tile; kernels with tensor maps make these themselves."""
    tile = dict(each["tile"])
    return tile | {"MAPS": 0} if each["kernel"].startswith("matmul_tma") else tile


def main() -> None:
    parser = argparse.ArgumentParser(description="Turn times of products into a tuning file.")
    parser.add_argument("times", nargs="+", type=Path)
    parser.add_argument("--arch", required=True)
    parser.add_argument("--chip", required=True)
    parser.add_argument("-o", "--output", required=True, type=Path)
    parser.add_argument("--add", action="store_true", help="keep other products of the output")
    options = parser.parse_args()
    results = [each for path in options.times for each in json.loads(path.read_text())["results"]]
    kept = {"linear": records(results, False), "normed": records(results, True)}
    if options.add:
        old = json.loads(options.output.read_text(encoding="utf-8"))
        kept = {name: merged(old.get(name, ()), some) for name, some in kept.items()}
    head = {"format": FORMAT, "arch": options.arch, "chip": options.chip}
    for each in kept:
        list(read_records({**head, **kept}, str(options.output), each))
    parts = [json.dumps(head)[1:-1]] + [
        f'"{name}": [\n' + ",\n".join(json.dumps(record) for record in some) + "\n]"
        for name, some in kept.items()
    ]
    options.output.write_text("{" + ", ".join(parts) + "}\n", encoding="utf-8")
    print(f"{options.output}: {sum(map(len, kept.values()))} of {len(results)} times")


if __name__ == "__main__":
    main()
