"""Facts of Kunlun chips: typed, sourced, and replaced by configuration only by their names."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from sglk.errors import LoweringError
from sglk.targets.kunlun.capabilities import Chip, chip, configured_chip
from sglk.targets.kunlun.chip_facts import FACTS

FIELDS = {f.name for f in dataclasses.fields(Chip)} - {"arch", "facts"}
UNSURE = {"low", "unknown"}


@pytest.mark.parametrize("arch", FACTS)
def test_every_field_has_a_fact_with_a_source(arch: str) -> None:
    assert set(FACTS[arch]) == FIELDS
    for name, fact in FACTS[arch].items():
        assert fact.source, name
        assert type(getattr(chip(arch), name)) is type(fact.value)


def test_values_of_the_hardware_model() -> None:
    p800 = chip("xpu3")
    assert (p800.clusters, p800.cores_per_cluster, p800.sdnn_engines) == (12, 64, 12)
    assert (p800.lm_bytes, p800.sm_bytes, p800.uni_sram_bytes) == (8192, 262_080, 1_605_632)
    assert (p800.param_bytes, p800.page_size, p800.page_size_mla) == (512, 128, 64)
    assert p800.attention_tile == (64, 128)
    r300 = chip("xpu2")
    assert (r300.clusters, r300.sdnn_engines) == (8, 6)
    assert not r300.has_sdnn_tiles


@pytest.mark.parametrize("arch", FACTS)
def test_rates_that_nobody_published_are_marked_so(arch: str) -> None:
    """A rate is of high confidence only where the vendor said it."""
    for name in ("sdnn_f32_flops", "sdnn_i8_flops", "cluster_f32_flops"):
        assert chip(arch).fact(name).confidence in UNSURE


def test_a_configuration_file_replaces_facts_and_says_so(tmp_path: Path) -> None:
    file = tmp_path / "p800.json"
    file.write_text(json.dumps({"hbm_bytes_per_second": 1_500_000_000_000, "clusters": 10}))
    mine = configured_chip("xpu3", str(file))
    assert (mine.hbm_bytes_per_second, mine.clusters) == (1.5e12, 10)
    assert mine.fact("clusters").confidence == "configured"
    assert "p800.json; was 12" in mine.fact("clusters").source
    assert chip("xpu3").clusters == 12


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"clustres": 10}', "no fact named 'clustres'"),
        ('{"clusters": "ten"}', "clusters: expected int, got 'ten'"),
        ('{"clusters": true}', "clusters: expected int, got True"),
        ('{"clusters": -1}', "clusters: expected no less than 0, got -1"),
        ("[1]", "expected names and values"),
        ("{", "expected a JSON file"),
    ],
)
def test_a_wrong_configuration_is_refused(tmp_path: Path, text: str, why: str) -> None:
    file = tmp_path / "wrong.json"
    file.write_text(text)
    with pytest.raises(LoweringError, match=why):
        configured_chip("xpu3", str(file))


def test_an_unknown_architecture_is_refused() -> None:
    with pytest.raises(
        LoweringError, match="expected an architecture among xpu3, xpu2, got 'xpu9'"
    ):
        chip("xpu9")


def test_lists_in_a_file_become_tuples() -> None:
    mine = chip("xpu3", {"attention_tile": [128, 128], "published_tiles": [[64, 64]]})
    assert mine.attention_tile == (128, 128)
    assert mine.published_tiles == ((64, 64),)
    assert len(mine.records()) == len(FIELDS)
