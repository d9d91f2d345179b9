"""The emulated chip through the conformance kit; `sglk conformance kunlun` runs all sections."""

from __future__ import annotations

import json

import pytest
from sglk.cli import main

SECTIONS = ("facts", "device", "errors", "engine")
"""Those on one decoder; kernels have tests of their own."""


@pytest.mark.slow
def test_the_emulated_chip_conforms(capsys: pytest.CaptureFixture[str]) -> None:
    chosen = [word for name in SECTIONS for word in ("--section", name)]
    status = main(["conformance", "kunlun", "--quick", "--json", *chosen])
    record = json.loads(capsys.readouterr().out)
    assert not [o for o in record["outcomes"] if o["status"] == "failed"]
    assert status == 0 and {o["section"] for o in record["outcomes"]} == set(SECTIONS)
