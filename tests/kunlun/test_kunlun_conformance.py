"""The emulated chip through the conformance kit; `sglk conformance kunlun` runs all sections."""

from __future__ import annotations

import json

import pytest
from sglk.cli import main
from sglk.targets.conformance import steps
from sglk.targets.conformance.decoder import Shape

SECTIONS = ("facts", "device", "errors", "engine")
"""Those on one decoder; kernels have tests of their own."""


@pytest.mark.slow
def test_heads_of_80(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles are 128 wide: their last columns are the next key's, or behind the cache's end. A norm
    of a head adds chunks of 16."""
    odd = Shape("heads of 80", head_dim=80, pairs=40, layers=1, head_norms=True)
    monkeypatch.setattr(steps, "SHAPES", (odd,))
    assert main(["conformance", "kunlun", "--quick", "--json", "--section", "steps"]) == 0
    found = json.loads(capsys.readouterr().out)["counts"]
    assert found["ok"] > 5 and found["absent"] <= 1, found


@pytest.mark.slow
def test_the_emulated_chip_conforms(capsys: pytest.CaptureFixture[str]) -> None:
    chosen = [word for name in SECTIONS for word in ("--section", name)]
    status = main(["conformance", "kunlun", "--quick", "--json", *chosen])
    record = json.loads(capsys.readouterr().out)
    assert not [o for o in record["outcomes"] if o["status"] == "failed"]
    assert status == 0 and {o["section"] for o in record["outcomes"]} == set(SECTIONS)
