"""The conformance kit: the CPU passes; a new op is covered or fails."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from sglk.cli import main
from sglk.ir.op import OPS
from sglk.targets.conformance.cases import ONLY_CAPTURED, ONLY_IN_DECODERS, all_cases
from sglk.targets.conformance.compare import difference
from sglk.targets.conformance.kit import SECTIONS


def test_every_op_is_covered() -> None:
    cases = all_cases()
    assert set(cases) | ONLY_IN_DECODERS | ONLY_CAPTURED == set(OPS)
    bare = [name for name, each in cases.items() if not each]
    assert not bare, "add cases to targets/conformance/cases.py"


def test_cases_have_names_of_their_own() -> None:
    names = [case.name for cases in all_cases().values() for case in cases]
    assert len(set(names)) == len(names)


def test_the_cpu_conforms(capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["conformance", "cpu", "--quick", "--json"])
    record = json.loads(capsys.readouterr().out)
    failed = [o for o in record["outcomes"] if o["status"] == "failed"]
    assert not failed
    assert status == 0 and record["passed"]
    unreached = [o["name"] for o in record["outcomes"] if o["name"].startswith("row ")]
    assert not unreached, "rows of the table that no case of the kit gets to"
    assert {o["section"] for o in record["outcomes"]} == {*SECTIONS, "engine"}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["no-such-chip"], "expected one of cpu"),
        (["cpu", "--section", "speed"], "--section: expected one of facts, ops"),
        (["cpu", "--section", "ops", "--op", "fry"], "--op: expected one of abs"),
    ],
)
def test_wrong_options_are_refused(
    capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    assert main(["conformance", *arguments]) == 1
    assert sentence in capsys.readouterr().err


def test_the_table_says_what_is_not_offered(capsys: pytest.CaptureFixture[str]) -> None:
    chosen = ["--device", "emulator", "--section", "ops", "--op", "matmul"]
    assert main(["conformance", "kunlun", *chosen]) == 0
    out = capsys.readouterr().out
    assert "ops: 0 ok, 1 not offered" in out
    assert "the operator table has no row for it" in out
    assert out.endswith("kunlun: conforms (1 checks)\n")


X = np.array([[1.0, -2.0], [4.0, 0.5]], np.float32)


@pytest.mark.parametrize(
    ("got", "wanted", "reason"),
    [
        (X, X, ""),
        (X[:1], X, r"expected shape (2, 2), got (1, 2)"),
        (X + np.array([0, 0.1], np.float32), X, "expected -2 at (0, 1), got -1.9: off by 0.025"),
        (np.where(X < 0, np.nan, X), X, "expected -2 at (0, 1), got nan"),
        (X, np.where(X < 0, np.inf, X), "expected inf at (0, 1), got -2"),
        (-np.full(2, np.inf), np.full(2, np.inf), "expected inf, got the other sign"),
        (np.array([3, 1]), np.array([3, 2]), "expected 2 at (1,), got 1 (1 of 2 values differ)"),
    ],
)
def test_differences_say_where_and_by_how_much(
    got: np.ndarray, wanted: np.ndarray, reason: str
) -> None:
    assert difference(got, wanted, 1e-3).startswith(reason)
    assert bool(difference(got, wanted, 1e-3)) == bool(reason)


def test_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    assert main(["conformance", "cpu", "--section", "facts", "--json"]) == 0
    assert not list(tmp_path.iterdir())
