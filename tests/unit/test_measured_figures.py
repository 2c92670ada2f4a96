"""Every measured figure in README.md and BENCHMARKS.md is one of the JSON files in tests/benchmarks/results/."""

import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from pipeline.acceptance.decoding_speed import DecodingSpeed
from pipeline.commands.tables.show import print_summary
from pipeline.commands.tables.summary import Summary
from pipeline.judgement.speed import conditions, per_second, speedup_text
from tests.benchmarks.render import FOLDER, pages
from tests.benchmarks.stored import Results

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(not (ROOT / "README.md").exists(), reason="runs in a checkout")

# What looks like a measurement, and what of it is a requirement or a setting.
_MEASURED = re.compile(r"\d[\d.,]*(?: ?%| ?GiB| ?[kM]B| m?s\b| seconds?| minutes?| hours?| times| points?| of \d+)")
_SETTINGS = {"4 GiB", "95%"}


def test_every_page_of_figures_is_what_the_results_say() -> None:
    """BENCHMARKS.md and docs/benchmarks/ are what `python -m tests.benchmarks render` would write, and no page is left over."""
    found = pages()
    assert found == {path: (ROOT / path).read_text(encoding="utf-8") for path in found}
    assert {path.name for path in found if path.parent == FOLDER} == {path.name for path in (ROOT / FOLDER).iterdir()}


def test_the_readme_shows_the_measured_quickstart(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its table is what `understudy show` prints for the stored figures."""
    figure = Results().figure("quickstart")
    monkeypatch.setenv("COLUMNS", "102")
    print_summary(_summary({name: figure[name] for name in ("gamma", "drafts", "perplexity")}))
    shown = capsys.readouterr().out.partition("Temperature 1")[2].strip()
    assert "".join(f"    {line}\n" for line in f"Temperature 1{shown}".splitlines()) in _readme()


def test_the_readme_shows_the_measured_speed() -> None:
    """The last lines of the quickstart: tokens per second, plain, with the base draft and with the candidate."""
    speed = TypeAdapter(DecodingSpeed).validate_python(Results().figure("quickstart")["speed"])
    shown = [per_second(speed.plain), conditions(speed)]
    for draft in (speed.baseline, speed.candidate):
        assert draft is not None
        shown += [f"γ={draft.gamma}", per_second(draft.tokens_per_second), speedup_text(draft)]
    readme = " ".join(_readme().split())  # where lines end depends on the width
    assert [] == [text for text in shown if text not in readme]


def _summary(figures: dict[str, Any]) -> Summary:
    """Of a run about which nothing else is known."""
    conditions = {"temperature": 1, "confidence": 0.95}
    about = {"run": "", "state": "", "stages": [], "directories": {}, "failure": "", **conditions}
    unknown = dict.fromkeys(("decision", "promotion", "mlflow", "learning_curve", "examination"))
    return TypeAdapter(Summary).validate_python({**about, **unknown, **figures})


def test_the_readme_quotes_the_results() -> None:
    """Each sentence with a measured figure is computed from the JSON files."""
    prose = _prose()
    assert [] == [sentence for sentence in _sentences() if sentence not in prose]


def test_no_other_figure_is_in_the_readme() -> None:
    """A measurement that no JSON file has cannot be checked."""
    prose = _prose()
    for sentence in _sentences():
        prose = prose.replace(sentence, "")
    assert _SETTINGS == set(_MEASURED.findall(prose))


def _sentences() -> list[str]:
    """As the README has them."""
    results = Results()
    quickstart, speed, power = (results.figure(name) for name in ("quickstart", "evaluator_speed", "power"))
    rows = [
        row for row in results.figure("conformance")["rows"] if row["build"] != "shipped" or row["temperature"] == 0
    ]
    exact = [row["identical"] for row in rows if "identical" in row]
    regimes = results.figure("distillation_defaults")["regimes"]
    ahead = {
        (regime, peer): -100 * regimes[regime]["equal_time"][f"trl_{peer}"]["over"]["value"]
        for regime in ("moved", "near")
        for peer in ("sft", "gkd")
    }
    latency = results.figure("latency_models")
    engine = next(one for one in latency["sweeps"] if "vLLM" in one["name"])
    refused = 100 * max(1 - row["at_needed"]["passed"] for row in power["pairs"])
    passed = 100 * max(
        cell["passed"] for row in power["pairs"] for cell in row["losses"] if cell["loss"] == power["margin"]
    )
    decoding = results.figure("gpu_kit")["parts"]["decoding"]["measures"].values()
    faster = [one["over_assisted"] for one in decoding if "over_assisted" in one]
    return [
        f"it takes {quickstart['seconds']:.0f} s and {quickstart['peak_gibibytes']:.1f} GiB of memory "
        f"on {results.conditions('quickstart').partition(' on ')[2]}",
        f"identical in {sum(exact)} of {len(exact)} comparisons",
        f"{speed['ratio']:.0f} times as fast as assisted generation of transformers",
        f"{min(faster):.1f} and {max(faster):.1f} times as fast as assisted generation",
        f"after {results.figure('distillation_defaults')['seconds']:.0f} s of training",
        f"{ahead['moved', 'sft']:.1f} points above TRL's SFT and {ahead['moved', 'gkd']:.1f} points above its GKD",
        f"before its fine-tuning {ahead['near', 'sft']:.1f} points and {ahead['near', 'gkd']:.1f} points",
        f"{engine['heavier']['mape']:.1%} off at a load heavier than any that was measured, "
        f"and {engine['lighter']['mape']:.1%} at a lighter one",
        f"p95 latency by at most {max(abs(one['predicted_p95'] / one['p95'] - 1) for one in latency['rates']):.1%}",
        f"refuses an equal draft in at most {refused:.1f} of 100 checks",
        f"worse by the margin in at most {passed:.1f} of 100",
    ]


def _readme() -> str:
    return (ROOT / "README.md").read_text(encoding="utf-8")


def _prose() -> str:
    """Without indented blocks, each paragraph on one line."""
    return " ".join(line.strip() for line in _readme().splitlines() if not line.startswith("    "))
