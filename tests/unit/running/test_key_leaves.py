"""Which stages know a key of the config: changing it alone changes the settings of those stages, and of no others.

A row of `KNOWN_BY` holds for a key and everything below it, until a longer row says otherwise. Every key of the config has a row,
so a new key cannot be forgotten. The rows are written by hand: a stage that stops reading a key, or begins to, is noticed.
"""

import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from pipeline.config.loading import load_config
from pipeline.config.pair import ModelSource
from pipeline.config.promote import NoticeConfig
from pipeline.config.resources import RESOURCES
from pipeline.config.root import Config
from pipeline.running.jobs import jobs_of
from pipeline.running.stage_list import STAGE_NAMES

CONFIGS = Path(__file__).parents[3] / "configs"
SOURCES = "[{path: prompts.jsonl, since: 7d, sample: 9, half_life: 7d, limit: 99}]"

# Every optional section is there, so that each of its keys can be changed.
COMMON = (
    "distill.lora={rank: 4}",
    "distill.on_policy.rounds=1",
    "generate.examination_samplings=[{temperature: 0.5}]",
    "generate.train_temperatures=[0.5]",
    "gate.load={requests_per_second: 1}",
    "gate.profile={unquantized: a.json}",
    "gate.champion_profile=b.json",
    "gate.served_target={dtype: float32}",
    "promote.export={engine: transformers, out: champion}",
    "execution.ray={workers: 2}",
)
LOCAL = (
    "pair.target={source: ./target}",
    "pair.draft={source: ./draft}",
    "pair.target_before={source: ./before}",
    f"corpus.sources={SOURCES}",
)
SERVED = (
    "pair.target={source: server, tokenizer: ./tokenizer, revision: r1}",
    "pair.draft={source: ./draft}",
    f"corpus.sources={SOURCES}",
    "generate.engine=server",
    "generate.server={endpoints: [{url: 'http://127.0.0.1:1'}], model: m}",
    "distill.on_policy.rounds=0",
)
BASES = {"reference": (), "local": LOCAL, "served": SERVED}

KNOWN_BY: dict[str, str] = {
    "name": "promote",
    "seed": "generate distill quantize gate",  # of the gate: in the decision's provenance
    "device": "",
    "pair.target.source": "",  # the digest of the model is an input
    "pair.target.revision": "pair",
    "pair.target.tokenizer": "",
    "pair.target.device_map": "",
    "pair.target.dtype": "pair generate distill speed",  # of distill: its on-policy rounds load the target
    "pair.draft.source": "",
    "pair.draft.revision": "pair",
    "pair.draft.dtype": "pair distill quantize evaluate speed",
    "pair.draft.layers": "pair",
    "pair.draft.head": "pair",
    "pair.draft.vocabulary": "pair",
    "pair.draft.tokens": "pair",
    "pair.target_before.source": "",
    "pair.target_before.revision": "pair",
    "pair.target_before.dtype": "pair generate",
    "pair.target_before": "pair generate evaluate",  # whether there is one
    "pair.trust_remote_code": "",
    "pair.generation_config": "",
    "pair.rope_factors": "pair",  # and in the digests of the models, which have it in their configs
    "pair.reference": "",
    "corpus": "corpus",
    "corpus.sources.0.path": "",  # the digest of the file is an input
    "corpus.max_prompt_tokens": "corpus generate",  # of generate: later turns of chats
    "corpus.chat_template": "corpus generate",
    "corpus.chat_template_arguments": "corpus generate",
    "sampling": "generate distill quantize evaluate speed gate",
    "generate": "generate",
    "generate.engine": "",
    "generate.server": "",
    "generate.max_new_tokens": "generate distill",  # of distill: on-policy rounds generate as generate does
    "generate.distribution_tokens": "generate distill",
    "generate.batch": "generate distill",
    "generate.shard": "generate distill",
    "distill": "distill quantize",  # a variant may be trained further
    "distill.prompt_weight": "generate distill",  # of generate: whether prompts are scored; a variant is trained without
    "distill.processes": "",
    "distill.shard": "",
    "quantize": "quantize",
    "quantize.engine": "quantize evaluate gate",  # which variants are made, and examined
    "quantize.variants": "quantize evaluate gate",
    "evaluate": "evaluate",
    "evaluate.convention": "evaluate gate",  # not of distill or quantize: checkpoints are compared by a measure of their own
    "evaluate.gamma": "evaluate gate",
    "evaluate.max_gamma": "evaluate speed gate",
    "evaluate.confidence": "evaluate speed gate",
    "evaluate.draft_sampling": "distill quantize evaluate speed",  # dev acceptance, by which checkpoints are chosen
    "evaluate.speed": "speed",
    "evaluate.batch_tokens": "distill quantize evaluate",
    "gate": "gate",
    "gate.load.max_batch": "gate promote",  # of promote: the memory that the draft card states
    "gate.load.context": "gate promote",
    "gate.max_examination_days": "gate promote",
    "gate.profile": "",  # the digests of the files are inputs
    "gate.champion_profile": "",
    "promote": "promote",
    "tracking": "",
    "watch": "",
    "execution": "",
    "plan": "",
}
OF_BASE: dict[str, dict[str, str]] = {  # where a base differs
    "reference": {
        "seed": "pair generate distill quantize gate",
        "pair.target.source": "pair generate evaluate",  # as a directory: another pair, without a target before
        "pair.target.revision": "",
        "pair.target.dtype": "generate distill speed",
        "pair.draft.revision": "",
        "pair.draft.dtype": "distill quantize evaluate speed",
        "pair.draft.layers": "",
        "pair.draft.head": "",
        "pair.draft.vocabulary": "",
        "pair.draft.tokens": "",
        "pair.rope_factors": "",  # its models have none
        "pair.target_before": "",  # it has its own
        "pair.reference": "pair",
        "corpus.sources.0.path": "corpus",  # as a file: another kind of source
    },
    "local": {},
    "served": {  # pair asks the servers for what generate will ask of them; there are no on-policy rounds
        "pair.target.source": "pair speed",  # as a directory: without servers to ask; and it is timed
        "pair.target.device_map": "",
        "pair.target.dtype": "pair generate",
        "pair.draft.dtype": "pair distill quantize evaluate",
        "pair.generation_config": "pair",
        "sampling": "pair generate distill quantize evaluate gate",
        "generate.engine": "generate",
        "generate.server.api": "pair generate",
        "generate.server.logprobs": "pair generate",
        "generate.train_temperatures": "pair generate",
        "generate.examination_samplings": "pair generate",
        "generate.max_new_tokens": "generate",
        "generate.distribution_tokens": "generate",
        "generate.batch": "",  # the servers choose
        "generate.shard": "generate",
        "evaluate.max_gamma": "evaluate gate",
        "evaluate.draft_sampling": "distill quantize evaluate",
        "evaluate.confidence": "evaluate gate",
        "evaluate.speed": "",  # a target on servers is not timed
    },
}
VALUES: dict[str, Any] = {  # where no validator was asked, but the jobs depend on the value
    "pair.target_before": ModelSource(source="./before"),
    "quantize.engine": "llama.cpp",
    "quantize.variants": ("int4",),
}


def _base(name: str) -> Config:
    config = load_config(CONFIGS / "smoke.yaml", (*COMMON, *BASES[name]))
    told = config.promote.model_copy(
        update={"notice": NoticeConfig(url="http://127.0.0.1/")}
    )  # not an option's business
    return config.model_copy(update={"promote": told})


def _leaves(section: BaseModel, above: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The place of every value that is no section. Of a list of sections, the first one's."""
    for name in type(section).model_fields:
        value, place = getattr(section, name), (*above, name)
        if isinstance(value, tuple) and value and isinstance(value[0], BaseModel):
            value, place = value[0], (*place, 0)
        if isinstance(value, BaseModel):
            yield from _leaves(value, place)
        else:
            yield place


def _with(value: Any, place: tuple[str | int, ...], new: Any) -> Any:
    """`value` with another one at `place`: `new`, if that is not None. The validators, which would refuse many, are not asked."""
    name, *below = place
    if isinstance(name, int):
        return (*value[:name], _with(value[name], tuple(below), new), *value[name + 1 :])
    before = getattr(value, name)
    return value.model_copy(update={name: _with(before, tuple(below), new) if below else _other(before, new)})


def _other(value: Any, new: Any) -> Any:
    if new is not None:
        return new
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, str):
        return value + "x"
    if isinstance(value, tuple):
        return (*value, 0.25)
    return {**value, "x": 1} if isinstance(value, dict) else 1


def _settings(config: Config) -> dict[str, dict[str, Any]]:
    """By stage, then by job, what enters the key beside the inputs."""
    found: dict[str, dict[str, Any]] = {stage: {} for stage in STAGE_NAMES}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pydantic's, of a value that no validator has seen
        for job in jobs_of(config):
            found[job.stage][job.id] = job.key_settings
    return found


def _longest(rows: Mapping[str, str], key: str) -> str | None:
    """The row that holds for `key`: its own, or the nearest above it."""
    parts = key.split(".")
    above = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((row for row in above if row in rows), None)


def _expected(base: str, key: str) -> set[str]:
    row, own = _longest(KNOWN_BY, key), _longest(OF_BASE[base], key)
    assert row is not None, f"{key} has no row in KNOWN_BY: which stages know it?"
    if own is not None and len(own) >= len(row):
        return set(OF_BASE[base][own].split())
    return set(KNOWN_BY[row].split())


@pytest.mark.parametrize("base", BASES)
def test_a_key_of_the_config_is_known_to_its_stages_and_to_no_others(base: str) -> None:
    """Each key changed alone, on a pair that is trained here, one of directories, and one with a served target."""
    config = _base(base)
    before, wrong = _settings(config), {}
    for place in _leaves(config):
        key = ".".join(map(str, place))
        after = _settings(_with(config, place, VALUES.get(key)))
        found = {stage for stage in STAGE_NAMES if before[stage] != after[stage]}
        if found != (expected := _expected(base, key)):
            wrong[key] = {"known to": sorted(found), "expected": sorted(expected)}
    assert {} == wrong


def test_resources_are_in_no_key() -> None:
    """A run may go on with others, and must find its artifacts."""
    for key in RESOURCES:
        assert set() == set().union(*(_expected(base, key) for base in BASES)), key


def test_every_row_is_of_a_key() -> None:
    """A row for a key that is no longer there would go unnoticed."""
    keys = {".".join(map(str, place)) for base in BASES for place in _leaves(_base(base))}
    for rows in (KNOWN_BY, *OF_BASE.values(), VALUES):
        assert [] == [row for row in rows if not any(f"{key}.".startswith(f"{row}.") for key in keys)]


def test_scored_prompts_depend_on_what_they_are_scored_with() -> None:
    """Each key changed alone: the others pay for no prompt again. The corpus is an input."""
    scored = {
        "pair.target.dtype",
        "seed",
        "generate.max_new_tokens",
        "generate.shard",
        "generate.distribution_selection",
    }
    config = _base("local")
    config = config.model_copy(update={"distill": config.distill.model_copy(update={"prompt_weight": 0.5})})
    before, known = _settings(config)["generate"]["generate/prompts"], set()
    for place in _leaves(config):
        key = ".".join(map(str, place))
        new = 7 if key == "generate.distribution_tokens" else VALUES.get(key)
        if (
            key != "distill.prompt_weight"
            and _settings(_with(config, place, new))["generate"].get("generate/prompts") != before
        ):
            known.add(key)
    assert scored | {"generate.distribution_tokens"} == known
