"""What operators read is true: metrics, dashboard, alerts, manifest, phases of the start."""

from __future__ import annotations

import json
import re
import urllib.request
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import sglk
import yaml
from prometheus_client.parser import text_string_to_metric_families
from sglk.runtime.server.metrics import DEGRADED
from sglk.runtime.server.startup import Phases, process_started

DOCS = Path(sglk.__file__).parent / "docs"
GUIDE = (DOCS / "operations.md").read_text()
ALERTS = yaml.safe_load((DOCS / "operations" / "alerts.yaml").read_text())["groups"][0]["rules"]
DASHBOARD = json.loads((DOCS / "operations" / "dashboard.json").read_text())
FROM_PROMETHEUS = {"up"}


@pytest.fixture(scope="module")
def families(shared_server: Any) -> dict[str, Any]:
    """What a server that has answered publishes, by family."""
    shared_server.chat()
    text = shared_server.http.get("/metrics").text
    return {family.name: family for family in text_string_to_metric_families(text)}


def published(families: dict[str, Any]) -> set[str]:
    """Names of all series."""
    names = {sample.name for family in families.values() for sample in family.samples}
    return names | FROM_PROMETHEUS


def family_names(families: dict[str, Any]) -> set[str]:
    """As the guide writes them: counters with their suffix."""
    found = set()
    for family in families.values():
        if family.name.startswith("sglk_"):
            found.add(f"{family.name}_total" if family.type == "counter" else family.name)
    return found


def test_the_guide_lists_exactly_the_metrics_that_exist(families: dict[str, Any]) -> None:
    rows = dict(re.findall(r"^\| `(sglk_\w+)` \| (\w+) \|", GUIDE, re.MULTILINE))
    assert set(rows) == family_names(families)
    for family in families.values():
        if family.name.startswith("sglk_"):
            name = f"{family.name}_total" if family.type == "counter" else family.name
            assert rows[name] == family.type, name


def test_reasons_in_the_guide_are_those_that_exist(families: dict[str, Any]) -> None:
    for name, label in (
        ("sglk_refusals", "reason"), ("sglk_errors", "kind"), ("sglk_timeouts", "limit"),
        ("sglk_answers", "reason"),
    ):  # fmt: skip
        row = next(line for line in GUIDE.splitlines() if line.startswith(f"| `{name}_total`"))
        listed = set(re.findall(r"`(\w+)`", row)) - {f"{name}_total", label}
        assert listed == {s.labels[label] for s in families[name].samples}, name
    troubles = set(re.findall(r"^\| `degraded: (\w+)`", GUIDE, re.MULTILINE))
    assert troubles == set(DEGRADED)
    assert {s.labels["reason"] for s in families["sglk_degraded"].samples} == set(DEGRADED)


def queries() -> list[tuple[str, str]]:
    found = [
        (panel["title"], target["expr"])
        for panel in DASHBOARD["panels"]
        for target in panel["targets"]
    ]
    return found + [(rule["alert"], rule["expr"]) for rule in ALERTS]


@pytest.mark.parametrize(("title", "query"), queries())
def test_queries_parse_and_use_metrics_that_exist(
    families: dict[str, Any], title: str, query: str
) -> None:
    plain = query.replace("$__rate_interval", "1m").replace("$instance", ".*")
    promql_parser.parse(plain)
    without_strings = re.sub(r'"[^"]*"', '""', plain)
    without_labels = re.sub(r"by \([^)]*\)", "", re.sub(r"\{[^}]*\}", "", without_strings))
    used = set(re.findall(r"\b(?:sglk|process|up)[a-z0-9_]*\b", without_labels))
    assert used and used <= published(families), title
    for name, labels in re.findall(r"(sglk_\w+)\{([^}]*)\}", plain):
        known = {
            key
            for family in families.values()
            for sample in family.samples
            if sample.name == name
            for key in sample.labels
        }
        assert set(re.findall(r"(\w+)=", labels)) <= known | {"instance"}, title


def test_the_dashboard_shows_what_the_guide_promises() -> None:
    shown = " ".join(query for _, query in queries())
    for name in re.findall(r"^\| `(sglk_\w+)` \|", GUIDE, re.MULTILINE):
        assert name in shown or name in ("sglk_info",), f"{name} is in no panel"
    places = [tuple(panel["gridPos"].values()) for panel in DASHBOARD["panels"]]
    assert len(set(places)) == len(places)
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in DASHBOARD["panels"])


def test_every_alert_is_explained_and_links_to_its_section() -> None:
    for rule in ALERTS:
        assert f"### {rule['alert']}\n" in GUIDE
        anchor = rule["annotations"]["runbook"].partition("#")[2]
        assert anchor == rule["alert"].lower()
        assert rule["labels"]["severity"] in ("warning", "critical")


def test_the_manifest_probes_paths_that_exist(server: Any) -> None:
    text = (DOCS / "operations" / "kubernetes.yaml").read_text()
    deployment = next(d for d in yaml.safe_load_all(text) if d["kind"] == "Deployment")
    spec = deployment["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        path = container[probe]["httpGet"]["path"]
        assert server.http.get(path).status_code == 200
    from sglk.cli.serve import make_parser, settings_of

    options = make_parser().parse_args([*container["command"][2:], *container["args"]])
    settings = settings_of(options)
    grace = spec["terminationGracePeriodSeconds"]
    assert grace > settings.drain_delay + settings.drain_timeout + 5
    assert container["readinessProbe"]["timeoutSeconds"] > settings.step_timeout


def test_options_in_the_guide_exist() -> None:
    from sglk.cli.serve import make_parser

    known = make_parser().format_help()
    for option in set(re.findall(r"`(--[a-z-]+)", GUIDE)) - {"--audit", "--concurrency"}:
        assert option in known, option


def test_phases_of_a_start_sum_up_to_its_wall_time(server: Any) -> None:
    total = server.metric("sglk_startup_seconds")
    phases = [
        float(line.rpartition(" ")[2])
        for line in server.http.get("/metrics").text.splitlines()
        if line.startswith("sglk_startup_phase_seconds{")
    ]
    assert len(phases) >= 3 and abs(sum(phases) - total) < 1e-6
    assert server.http.get("/health/ready").json()["startup_seconds"] == round(total, 3)


def test_the_start_of_the_process_is_before_now() -> None:
    import time

    phases = Phases(process_started())
    phases.end("so far")
    assert 0 < phases.total < time.clock_gettime(time.CLOCK_BOOTTIME)


def test_steps_that_are_delivered_together_keep_their_times(make_server: Any) -> None:
    server = make_server()
    server.device.pace = 0.002  # less than the loop waits between deliveries
    server.chat("count me", max_tokens=40, ignore_eos=True)
    assert server.metric("sglk_itl_seconds_count") == 39
    assert server.metric('sglk_itl_seconds_bucket{le="0.001"}') == 0


def test_counts_add_up(make_server: Any) -> None:
    server = make_server()
    for at in range(6):
        server.chat("count me", max_tokens=5, ignore_eos=True, stream=at % 2 == 0)
    server.chat(frobnicate=1)
    page = urllib.request.urlopen(f"{server.url}/metrics").read().decode()
    assert 'sglk_requests_total{route="/v1/chat/completions",status="200"} 6.0' in page
    assert 'sglk_requests_total{route="/v1/chat/completions",status="400"} 1.0' in page
    for name, count in (
        ("sglk_ttft_seconds_count", 6), ("sglk_itl_seconds_count", 24),
        ("sglk_e2e_seconds_count", 6),
        ("sglk_queue_seconds_count", 6), ('sglk_answers_total{reason="length"}', 6),
        ("sglk_answer_length_tokens_sum", 30), ("sglk_generated_tokens_total", 31),
        ('sglk_refusals_total{reason="invalid"}', 1), ("sglk_in_flight", 0),
        ('sglk_pages{state="held"}', 0),
    ):  # fmt: skip
        assert server.metric(name) == count, name
    assert 0 < server.metric("sglk_cache_hit_ratio") < 1
    steps = server.metric("sglk_steps_total")
    assert (
        server.metric("sglk_step_seconds_count") == steps == server.metric("sglk_step_tokens_count")
    )
    assert (
        server.metric("sglk_busy_seconds_total") >= server.metric("sglk_device_seconds_total") > 0
    )
