"""`--depth auto`, `--explain-policy` and `edgespec probe`, as users meet them."""

from __future__ import annotations

import json
from pathlib import Path

from .conftest import Edgespec


def test_auto_is_the_default_and_reports_an_estimated_gain(edgespec: Edgespec, pair: list[object]) -> None:
    words = ("run", *pair, "yes, stay", "--max-tokens", 30, "--logit-bias", "22=-inf")
    found = edgespec(*words, "--json").json
    assert found["depth"] == "auto"
    assert found["stats"]["plain_seconds"] > 0
    assert found["stats"]["estimated_speedup"] > 0


def test_every_round_is_explained_on_stderr(edgespec: Edgespec, pair: list[object]) -> None:
    ended = edgespec("run", *pair, "yes, stay", "--max-tokens", 30, "--explain-policy")
    assert "the first token comes with the prompt" in ended.err
    assert "expected: plain" in ended.err
    assert "accepted)" in ended.err
    fixed = edgespec("run", *pair, "yes, stay", "--max-tokens", 5, "--explain-policy", "--depth", 3)
    assert "depth 3, as asked for" in fixed.err


def test_what_was_measured_and_learned_is_kept_beside_the_models(
    edgespec: Edgespec, pair: list[object], environment: dict[str, str]
) -> None:
    state = Path(environment["EDGESPEC_HOME"]) / "state"
    edgespec("run", *pair, "yes, stay", "--max-tokens", 30)
    (costs,) = [v for k, v in json.loads((state / "backend_speed.json").read_text()).items() if v][:1]
    assert set(costs["llama.cpp"]) == set("123458")
    (kept,) = json.loads((state / "controller.json").read_text()).values()
    assert set(kept["acceptance"]) == {"draft", "ngram"}
    assert kept["ledger"][0] > 0
    assert kept["lengths"]
    learned = json.loads((state / "costs.json").read_text())
    assert len(learned) == 2  # of the target and of the draft
    assert any(any(curve["shape"]) for curve in learned.values())


def test_refresh_has_passes_measured_anew_and_keeps_what_texts_have_taught(
    edgespec: Edgespec, pair: list[object], environment: dict[str, str]
) -> None:
    state, costs = Path(environment["EDGESPEC_HOME"]) / "state", ("backend_speed.json", "costs.json")

    def kept(name: str) -> dict[str, object]:
        found: dict[str, object] = json.loads((state / name).read_text())
        return found

    words, elsewhere = ("run", *pair, "yes, stay", "--max-tokens", 30), {"another machine/model/2": {}}
    edgespec(*words)
    learned = kept("controller.json")
    for name in costs:
        (state / name).write_text(json.dumps(kept(name) | elsewhere))
    assert "measured anew when it is next loaded" in edgespec("probe", "--refresh").err
    assert [kept(name) for name in costs] == [elsewhere, elsewhere]
    assert kept("controller.json") == learned
    edgespec(*words)
    assert [len(kept(name)) for name in costs] == [3, 3]


def test_damaged_state_costs_nothing_but_time(
    edgespec: Edgespec, pair: list[object], environment: dict[str, str]
) -> None:
    state = Path(environment["EDGESPEC_HOME"]) / "state"
    state.mkdir(parents=True)
    for name in ("backend_speed.json", "controller.json", "costs.json", "bandwidth.json"):
        (state / name).write_text("{ nonsense")
    assert edgespec("run", *pair, "yes, stay", "--max-tokens", 5).code == 0
    assert edgespec("probe", "--json").json["bandwidth"]["best"] > 0


def test_probe_prints_a_table_and_json(edgespec: Edgespec) -> None:
    table = edgespec("probe")
    assert table.code == 0
    assert all(word in table.out for word in ("processor", "memory", "GB/s", "heat"))
    assert "edgespec pull" in table.out  # no model yet
    found = edgespec("probe", "--json").json
    assert found["bandwidth"]["best"] > 0
    machine = {"cores", "memory", "available", "thermal", "power", "energy", "bandwidth"}
    assert set(found) == {*machine, "models"}


def test_probe_measures_once_and_again_when_told_to(edgespec: Edgespec, environment: dict[str, str]) -> None:
    first = edgespec("probe", "--json").json["bandwidth"]
    assert edgespec("probe", "--json").json["bandwidth"] == first
    file = Path(environment["EDGESPEC_HOME"]) / "state" / "bandwidth.json"
    file.write_text(file.read_text().replace(first["measured"], "2020-02-29"))
    assert "measured 2020-02-29; --refresh measures again" in edgespec("probe").out
    assert edgespec("probe", "--refresh", "--json").json["bandwidth"]["measured"] >= first["measured"]
