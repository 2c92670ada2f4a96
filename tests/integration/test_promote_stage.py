"""The promote stage: what it registers, what it writes, when it stops."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import UnderstudyError
from pipeline.judgement.decision_file import write_decision
from pipeline.judgement.schema import Verdict
from pipeline.models.files import model_digest, tokenizer_digest
from pipeline.registry.mlflow_client import client_for
from pipeline.running.context import StageContext
from pipeline.store.artifacts import Store
from pipeline.store.files import write_json
from stages import promote
from tests.contexts import stage_context
from tests.decisions import make_decision
from tests.integration.mlflow_fixtures import Quiet, config_of, make_draft, mlflow_template, store
from tests.integration.mlflow_fixtures import promote as promoted_before
from tests.integration.test_registry import roll_back
from tests.pairs import pair_facts
from tests.registry_in_memory import memory_store, on_mlflow, store_of

__all__ = ["memory_store", "mlflow_template", "store"]


DECISION = make_decision()


def commit(store: Store, stage: str, inputs: dict[str, str], figures: dict[str, float], **files: Any) -> Path:
    work = store.open_work(stage, f"{stage}0", resumable=False)
    for name, value in files.items():
        write_json(work / f"{name}.json", value)
    if stage == "distill":
        make_draft(work / "draft")
    if stage == "pair":
        (work / "tokenizer").mkdir()
        (work / "tokenizer/tokenizer.json").write_text("{}")
    return store.commit(
        work, {"stage": stage, "key": f"{stage}0", "inputs": inputs, "figures": figures, "provides": {}}
    ).path


@pytest.fixture
def context(request: pytest.FixtureRequest, tmp_path: Path) -> StageContext[Any]:
    """A run whose gate decided to promote."""
    store = store_of(request)
    commit(store, "corpus", {}, {"train": 360.0})
    inputs = {
        "decision": commit(store, "gate", {}, {}, decision=asdict(DECISION)),
        "distilled": (distilled := commit(store, "distill", {}, {})),
        "draft_unquantized": distilled,
        "examination_unquantized": commit(store, "evaluate", {}, {}),
        "pair": commit(store, "pair", {}, {}, pair=pair_facts()),
        "completions": commit(store, "generate", {"corpus": "corpus0"}, {}),
    }
    out = tmp_path / "out"
    out.mkdir()
    return stage_context(
        config_of(),
        "promote",
        store.root,
        out,
        inputs=inputs,
        digests={"draft_unquantized": model_digest(distilled / "draft")},
        facts={},
        run_id="run-1",
        progress=Quiet(),
    )


def decide(context: StageContext[Any], verdict: Verdict, **changes: Any) -> None:
    candidate = context.digests["draft_unquantized"]
    found = replace(DECISION, **{"candidate": candidate, "verdict": verdict, "reasons": ["too slow"], **changes})
    write_decision(context.inputs["decision"], found)


@on_mlflow
def test_promotes_with_card_tags_and_figures(context: StageContext[Any], store: Store) -> None:
    """The draft is champion, and card and tags have its provenance."""
    outcome = promote.run(context)
    registry = context.resources.registry
    champion = registry.champion()
    assert champion is not None
    version = client_for(registry.location).get_model_version(champion.name, "1")
    tags = version.tags
    card = (registry.fetch(champion, store.root / "unused") / "README.md").read_text()
    assert outcome.notes["result"] == "promoted"
    assert (context.out / "card.md").read_text() == card
    assert json.loads((context.out / "promotion.json").read_text())["version"] == "1"
    assert {"understudy.target_digest", "base_draft", "licence", "understudy.key.generate"} <= set(tags)
    assert ("reference", "d") == (champion.target.place, champion.target.content)
    assert tokenizer_digest(context.inputs["pair"] / "tokenizer") == champion.target.tokenizer
    assert tags["quantization"] == "unquantized"
    assert tags["acceptance_gain"].startswith("+10.98 points")
    assert version.description.startswith("**Passed**")
    assert f"champion export {champion.name}@champion --engine vllm" in version.description
    assert "champion rollback" not in version.description  # there was none before
    assert tags["understudy.key.corpus"] == "corpus0"


def test_the_chosen_variant_is_promoted(context: StageContext[Any]) -> None:
    """A quantized variant is registered with its own examination, and card and tags name the variant."""
    variant = context.store.root / "variant"
    make_draft(variant / "draft", b"four bits")
    write_json(
        variant / "manifest.json", {"stage": "quantize", "key": "quantize0", "files": {}, "figures": {}, "provides": {}}
    )
    digest = model_digest(variant / "draft")
    more = {"draft_int4": variant, "examination_int4": context.inputs["examination_unquantized"]}
    other = replace(context, inputs={**context.inputs, **more}, digests={**context.digests, "draft_int4": digest})
    decide(other, "promote", variant="int4", candidate=digest)
    promote.run(other)
    champion = context.resources.registry.champion()

    assert champion is not None
    assert digest == champion.digest
    tags = context.resources.registry.entry().versions["1"]
    assert ("int4", "quantize0") == (tags["quantization"], tags["understudy.key.quantize"])
    assert "| quantization | int4 |" in (other.out / "card.md").read_text()


def test_repeated_it_says_already_champion(context: StageContext[Any]) -> None:
    """Another run with the same draft changes nothing."""
    promote.run(context)
    other = replace(context, run_id="run-2")
    assert promote.run(other).notes["result"] == "already champion"
    decide(context, "already_champion")
    assert promote.run(other).notes["result"] == "already champion"


def test_verdict_about_another_champion_is_refused(context: StageContext[Any]) -> None:
    """`already champion` is checked against the registry as it is."""
    decide(context, "already_champion")
    with pytest.raises(UnderstudyError, match=r"changed since the examination \(is none\)"):
        promote.run(context)


def test_refused_draft_is_not_promoted(context: StageContext[Any]) -> None:
    """Any verdict but a promotion leaves the registry alone."""
    decide(context, "refuse")
    assert "refused: too slow" == promote.run(context).refused
    assert context.resources.registry.champion() is None


def test_a_draft_that_was_rolled_back_is_refused(context: StageContext[Any]) -> None:
    """It stays off in every later run; a forced promotion makes it champion again, and ordinary from then on."""
    promote.run(context)
    registry = context.resources.registry
    roll_back(registry)
    off = [promote.run(context) for _ in range(2)]
    nobody = registry.champion()
    forced = promote.run(replace(context, force_promote=True))
    again = promote.run(context)

    reason = "refused: the draft is reference-draft version 1, which was rolled back at 20"
    assert [True, True] == [outcome.refused.startswith(reason) for outcome in off]
    assert off[0].refused.endswith("; to promote it again, add --force-promote")
    assert (None, "1") == (nobody, off[0].notes["version"])
    assert ["promoted", ""] == [forced.notes["result"], forced.refused]
    assert ["promoted", ""] == [again.notes["result"], again.refused]


def test_champion_that_appeared_meanwhile_stops_it(context: StageContext[Any], tmp_path: Path) -> None:
    """Compared with no champion, but there is one now."""
    other = make_draft(tmp_path / "other", b"other")
    promoted_before(context.resources.registry, other, run_id="run-0")
    with pytest.raises(UnderstudyError, match=r"was version none, is 1"):
        promote.run(context)


def test_completions_that_have_become_too_old_stop_it(context: StageContext[Any]) -> None:
    """The gate's decision may be a stored one, from when the completions were young."""
    manifest = json.loads((context.inputs["completions"] / "manifest.json").read_text())
    write_json(context.inputs["completions"] / "manifest.json", {**manifest, "created": "2020-01-01T00:00:00Z"})
    other = replace(context, settings=replace(context.settings, max_examination_days=30))
    assert promote.run(other).refused.startswith("refused: max_examination_days (fail): ")
