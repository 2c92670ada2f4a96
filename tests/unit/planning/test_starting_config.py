"""The config that `understudy init` writes: accepted as it is, and one line for what cannot be used."""

import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import yaml

from pipeline.config.loading import load_config
from pipeline.config.root import Config
from pipeline.errors import UnderstudyError, UsageError
from pipeline.models.generation_config import sampling_defaults
from pipeline.planning import prompt_sample
from pipeline.planning.pair_name import pair_name
from pipeline.planning.starting_config import starting_config
from pipeline.running.inputs import require_inputs, resolve_inputs
from pipeline.running.local_pair import check_local_pair
from pipeline.running.pair_checks import apply_pair
from pipeline.store.artifacts import Store
from tests.fakes import quantize_in_name, tiny_llama, tiny_tokenizer
from tests.heads import eagle3_draft, medusa_draft, write_eagle3, write_medusa
from tests.standin_hub import standin_hub

HUB = "org/name@" + "12345678e9" * 4  # a revision that YAML could take for a number
SMALLER = "org/smaller@" + "0" * 40
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def _model(path: Path, template: str | None = None, **config: Any) -> Path:
    model, tokenizer = tiny_llama(dtype=torch.bfloat16), tiny_tokenizer()
    model.config.update(config)
    model.save_pretrained(path)
    tokenizer.chat_template = template
    tokenizer.save_pretrained(path)
    return path


def _deep(path: Path) -> Path:
    """Larger than a head on it."""
    tiny_llama(hidden=64, layers=6, dtype=torch.float32).save_pretrained(path)
    tiny_tokenizer().save_pretrained(path)
    return path


def _prompts(path: Path, rows: Sequence[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def _loaded(tmp_path: Path, text: str) -> Config:
    (tmp_path / "my.yaml").write_text(text)
    config = load_config(tmp_path / "my.yaml")
    require_inputs(config)
    return config


def test_a_local_pair(tmp_path: Path) -> None:
    """Dtype, lengths and chat template are those of the models, and the config is accepted as it is."""
    target = _model(tmp_path / "target", TEMPLATE, max_position_embeddings=200)
    draft = _model(tmp_path / "draft", max_position_embeddings=128)
    prompts = _prompts(tmp_path / "prompts.jsonl", [{"prompt": f"a {n}", "domain": "code"} for n in range(200)])
    text = starting_config(str(target), str(draft), prompts)
    config = _loaded(tmp_path, text)

    assert (str(target), "bfloat16") == (config.pair.target.source, config.pair.target.dtype)
    assert pair_name(str(target)) == config.name == config.promote.target_name
    assert 128 == config.corpus.max_prompt_tokens + config.generate.max_new_tokens + config.generate.lookahead
    assert config.corpus.chat_template is True
    assert "200 rows: 200 with `prompt`" in text
    assert "rows by domain (column `domain`): code 200" in text
    assert "add prompts" not in text


def test_sampling_is_that_of_the_log(tmp_path: Path) -> None:
    """Of most of its rows, before that of the generation config; rows that disagree are named."""
    target = _model(tmp_path / "target")
    (target / "generation_config.json").write_text(json.dumps({"temperature": 0.6, "top_k": 20}))
    rows: list[dict[str, Any]] = [{"prompt": f"a {n}", "temperature": 0.7, "top_p": 0.9} for n in range(3)]
    rows += [{"prompt": "b", "temperature": 1}, {"prompt": "c"}, {"prompt": "d", "temperature": float("nan")}]
    text = starting_config(str(target), SMALLER, _prompts(tmp_path / "prompts.jsonl", rows))
    found = _loaded(tmp_path, text).sampling
    assert (0.7, 0.9, 20) == (found.temperature, found.top_p, found.top_k)
    assert "# 3 rows of the log state temperature 0.7, top_p 0.9." in text
    assert "# 1 rows state other settings: temperature 1 (1). Their recorded answers are not used." in text
    rows = [{"prompt": "b", "temperature": 50.0}]
    text = starting_config(str(target), SMALLER, _prompts(tmp_path / "prompts.jsonl", rows))
    assert 0.6 == _loaded(tmp_path, text).sampling.temperature
    assert "out of range" in text


def test_what_a_log_has_is_offered(tmp_path: Path) -> None:
    """Recorded answers, times and redaction of a deployment's log, with a target that is loaded here; not of a plain data set."""
    target = _model(tmp_path / "target", TEMPLATE)
    answer = {"choices": [{"message": {"role": "assistant", "content": "x"}, "finish_reason": "stop"}]}
    request = {"messages": [{"role": "user", "content": "a"}], "temperature": 0.7}
    log = _prompts(tmp_path / "log.jsonl", [{"request": request, "response": answer, "created": 1795658546.5}] * 3)
    text = starting_config(str(target), SMALLER, log)
    assert "use_answers: false  # 3 rows have a recorded answer" in text
    assert "# since: 14d" in text
    assert "redact: false" in text
    assert "columns not used" not in text
    assert "response" == _loaded(tmp_path, text).corpus.sources[0].answer_field
    columns = {"request": [request] * 3, "response": [json.dumps(answer)] * 3, "timestamp": [1795658546.5] * 3}
    pq.write_table(pa.table(columns), tmp_path / "log.parquet")
    text = starting_config(str(target), SMALLER, tmp_path / "log.parquet")
    assert "use_answers: false  # 3 rows have a recorded answer" in text
    assert "by time_field: timestamp; 3 rows have a time" in text
    assert "columns not used" not in text
    plain = _prompts(tmp_path / "plain.jsonl", [{"prompt": "a", "answer": "b"}] * 3)
    assert "use_answers" not in starting_config(str(target), SMALLER, plain)


def test_sampling_is_that_of_the_targets_generation_config(tmp_path: Path) -> None:
    """As a server uses it, which ignores `do_sample`."""
    target = _model(tmp_path / "target")
    prompts = _prompts(tmp_path / "prompts.jsonl", [{"prompt": "a"}])
    saved = {"do_sample": True, "temperature": 0.7, "top_p": 0.95, "top_k": 20}
    for change, expected in (
        ({}, (0.7, 0.95, 20)),
        ({"do_sample": False}, (0.7, 0.95, 20)),
        ({"top_k": -1}, (0.7, 0.95, 0)),
    ):
        (target / "generation_config.json").write_text(json.dumps(saved | change))
        found = _loaded(tmp_path, starting_config(str(target), SMALLER, prompts)).sampling
        assert expected == (found.temperature, found.top_p, found.top_k)


def test_the_config_agrees_with_the_targets_generation_config(tmp_path: Path) -> None:
    """The checks of `pair` pass; a repetition penalty, which `sampling` cannot express, is pointed out."""
    target = _model(tmp_path / "target")
    prompts = _prompts(tmp_path / "prompts.jsonl", [{"prompt": "a"}])
    saved = {"temperature": 0.6, "top_p": 0.9, "max_new_tokens": 50}
    (target / "generation_config.json").write_text(json.dumps(saved))
    config = _loaded(tmp_path, starting_config(str(target), SMALLER, prompts))
    facts = {"context": 256, "vocabulary": 32, "chat_template": False, "impossible_variants": {}}

    assert config == apply_pair(config, facts | {"generation_config": sampling_defaults(target)})[0].model_copy(
        update={"quantize": config.quantize, "generate": config.generate}
    )
    (target / "generation_config.json").write_text(json.dumps(saved | {"repetition_penalty": 1.05}))
    text = starting_config(str(target), SMALLER, prompts)
    assert "The file also sets repetition_penalty 1.05" in text
    assert "check" == _loaded(tmp_path, text).pair.generation_config


def test_a_pair_on_the_hub_is_not_fetched(tmp_path: Path) -> None:
    """Names and revisions stand in the config as text; what is not known is said in comments."""
    prompts = _prompts(tmp_path / "prompts.jsonl", [{"turns": ["a", "b"]}])
    text = starting_config(SMALLER, HUB, prompts)
    config = _loaded(tmp_path, text)

    assert HUB == f"{config.pair.draft.source}@{config.pair.draft.revision}"
    assert config.corpus.chat_template is None
    assert "a model is not on this machine: check its context" in text
    assert "1 chats have several user messages" in text


def test_sessions_are_pointed_out(tmp_path: Path) -> None:
    """Chats with several recorded answers, from the second on."""
    asked, said = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}
    rows = [{"messages": messages} for messages in ([asked], [asked, said], [asked, said, asked, said])]
    text = starting_config(SMALLER, HUB, _prompts(tmp_path / "prompts.jsonl", rows))
    assert "every_answer: false  # 1 chats hold several answers" in text


@pytest.mark.parametrize("name", ["on", "a: b #c", "'\"", "-", "ä 漢", "line\nbreak", "next\u2028line"], ids=ascii)
def test_names_that_yaml_could_misread(tmp_path: Path, name: str) -> None:
    """A path is quoted where it must be, a domain cannot break out of its comment, and few prompts are pointed out."""
    (tmp_path / name).mkdir()
    prompts = _prompts(tmp_path / name / "prompts.jsonl", [{"prompt": "a", "domain": name}])
    text = starting_config(SMALLER, HUB, prompts)

    assert str(prompts) == _loaded(tmp_path, text).corpus.sources[0].path
    assert {"name", "pair", "corpus", "generate", "sampling", "distill", "evaluate", "gate", "promote"} == set(
        yaml.safe_load(text)
    )
    assert "will have about 0 examination prompts. The gate needs 40 per domain:\n  # add prompts, " in text


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        ([{"prompt": None}, {"x": 1}], "no row contains a prompt; line 1: null prompt: 'prompt' is null"),
        ([], "no row contains a prompt"),
        (
            [{"messages": [{"role": "user", "content": "a"}]}],
            "1 rows are chats, and the target's tokenizer has no chat",
        ),
    ],
    ids=["null", "empty", "chat"],
)
def test_prompts_that_cannot_be_used(tmp_path: Path, rows: list[Any], complaint: str) -> None:
    """One line that names the file and the reason."""
    target = _model(tmp_path / "target")
    prompts = _prompts(tmp_path / "prompts.jsonl", rows)
    with pytest.raises(UsageError) as caught:
        starting_config(str(target), SMALLER, prompts)

    assert f"--prompts {prompts}: " in str(caught.value)
    assert complaint in str(caught.value)


def test_models_that_cannot_be_used(tmp_path: Path) -> None:
    """A name that is no model, a directory without one, and a context that leaves no room."""
    prompts = _prompts(tmp_path / "prompts.jsonl", [{"prompt": "a"}])
    small = _model(tmp_path / "small", max_position_embeddings=18)
    for name, complaint in (
        ("no model", "--target no model: no such directory; a model of the hub is org/name, or org/name@revision"),
        (str(tmp_path), f"--target {tmp_path}: not a model directory"),
        (str(small), "context of 18 tokens leaves no room for a prompt"),
    ):
        with pytest.raises(UnderstudyError) as caught:
            starting_config(name, SMALLER, prompts)
        assert complaint in str(caught.value)


def test_names_of_the_hub_are_pinned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commits of both models that the hub has now stand in the config."""
    prompts = _prompts(tmp_path / "prompts.jsonl", [{"prompt": "a"}])
    monkeypatch.chdir(tmp_path)
    with standin_hub({"org/name": "a1" * 20, "org/small/revision/v1": "b2" * 20}) as url:
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", url)
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
        text = starting_config("org/name", "org/small@v1", prompts)
    pair = _loaded(tmp_path, text).pair

    assert ("org/name", "a1" * 20) == (pair.target.source, pair.target.revision)
    assert ("org/small", "b2" * 20) == (pair.draft.source, pair.draft.revision)
    assert 2 == text.count("# the commit that the hub had when this file was written")


def test_a_draft_that_is_the_target_is_refused(tmp_path: Path) -> None:
    """By name or by content, with a draft of the target's layers as the way on, which `--draft target` writes."""
    target, copy = _model(tmp_path / "target"), _model(tmp_path / "copy")
    for file in target.iterdir():
        shutil.copy(file, copy / file.name)
    prompts = _prompts(tmp_path / "prompts.jsonl", [{"prompt": "a"}])
    for one, draft in ((target, target), (target, copy), (HUB, HUB)):
        with pytest.raises(UsageError, match=r"--draft .*: this is the target itself, .*{source: target, layers: \d}"):
            starting_config(str(one), str(draft), prompts)
    config = _loaded(tmp_path, starting_config(str(target), "target", prompts))
    assert ("target", 1) == (config.pair.draft.source, config.pair.draft.layers)

    (tmp_path / "my.yaml").write_text(starting_config(str(target), SMALLER, prompts))
    same = ["pair.draft.source=./copy", "pair.draft.revision=null"]
    with pytest.raises(UsageError, match=r"pair\.draft\.source = .*copy: this is the target itself"):
        resolve_inputs(load_config(tmp_path / "my.yaml", same), Store(tmp_path / "store"))


@pytest.mark.parametrize("kind", ["eagle3", "medusa"])
def test_an_untrained_head_of_the_target(tmp_path: Path, kind: Any) -> None:
    target, prompts = _model(tmp_path / "target"), _prompts(tmp_path / "p.jsonl", [{"prompt": "a b"}] * 3)
    config = _loaded(tmp_path, starting_config(str(target), "target", prompts, head=kind))
    assert config.pair.draft.head is not None
    assert ("target", kind, None) == (config.pair.draft.source, config.pair.draft.head.kind, config.pair.draft.layers)
    with pytest.raises(
        UsageError, match=f"--draft-kind {kind}: a head reads hidden states of its target, which servers"
    ):
        starting_config("http://127.0.0.1:1", "target", prompts, str(target), head=kind)


@pytest.mark.parametrize("layout", ["speculators", "eagle", "medusa"])
def test_a_published_head(tmp_path: Path, layout: str) -> None:
    """Its kind and what it reads are found in its own config; a run takes the config as it is."""
    target, prompts = _deep(tmp_path / "target"), _prompts(tmp_path / "p.jsonl", [{"prompt": "a b"}] * 3)
    model, place = tiny_llama(hidden=64, layers=6, dtype=torch.float32), tmp_path / "head"
    if layout == "medusa":
        head, found = write_medusa(place, medusa_draft(model)), "# 3 places of 1 block, 32 tokens"
    else:
        head = write_eagle3(place, eagle3_draft(model, read=(0, 1, 2), kept=20), layout)
        found = "# 1 llama layer, reads hidden states 0, 1, 2 of the target, drafts 20 of 32 tokens"
    text = starting_config(str(target), str(head), prompts)
    config, kind = _loaded(tmp_path, text), "medusa" if layout == "medusa" else "eagle3"

    assert f"# its config.json: a head of kind {kind}, which is trained further;" in text
    assert found in text
    assert (str(head), None, None) == (config.pair.draft.source, config.pair.draft.head, config.pair.draft.layers)
    assert ("medusa" == kind, 3 if kind == "medusa" else 5) == ("unrolled_steps" not in text, config.evaluate.gamma)
    assert 256 == config.corpus.prompt_limit + config.generate.max_new_tokens + config.generate.lookahead
    check_local_pair(config)
    with pytest.raises(UsageError, match=f"--draft {head}: a head reads hidden states of its target, which servers"):
        starting_config("http://127.0.0.1:1", str(head), prompts, str(target))


def test_a_published_head_of_another_target(tmp_path: Path) -> None:
    """As the run refuses it; and a head in the place of the target is named."""
    target, prompts = _deep(tmp_path / "target"), _prompts(tmp_path / "p.jsonl", [{"prompt": "a b"}] * 3)
    head = write_eagle3(tmp_path / "head", eagle3_draft(tiny_llama(dtype=torch.float32), read=(1, 3, 9)))
    with pytest.raises(
        UsageError, match=r"--draft: .*head: the head reads hidden states \[1, 3, 9\] of a target of 6 layers"
    ):
        starting_config(str(target), str(head), prompts)
    with pytest.raises(UsageError, match=r"--target .*head: this is a draft \(kind eagle3\), not a target"):
        starting_config(str(head), str(target), prompts)


def test_columns_are_written_into_the_config(tmp_path: Path) -> None:
    """Those that were recognised, with what is not used, and those that were asked for."""
    chat = [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]
    prompts = _prompts(tmp_path / "prompts.jsonl", [{"conversations": chat, "system": "s", "kind": "x"}])
    text = starting_config(SMALLER, HUB, prompts)
    asked = starting_config(SMALLER, HUB, prompts, None, {"messages_field": "conversations", "domain_field": "kind"})

    assert "conversations" == _loaded(tmp_path, text).corpus.sources[0].messages_field
    assert "# read as JSON lines, ShareGPT: `conversations` with from/value\n" in text
    assert "# system_field: system  # puts this column before each prompt" in text
    assert "# columns not used: system, kind\n" in text
    assert "# not used: the answers in `conversations`, which the target has not given" in text
    assert "kind" == _loaded(tmp_path, asked).corpus.sources[0].domain_field
    assert "rows by domain (column `kind`): x 1" in asked
    with pytest.raises(UsageError, match=r"--domain-field: .*: no row has .* 'knid'; other .* did you mean kind\?"):
        starting_config(SMALLER, HUB, prompts, None, {"domain_field": "knid"})
    with pytest.raises(
        UsageError, match=r"no column q; its columns are .*; name the column with --prompt-field or --messages-field"
    ):
        starting_config(SMALLER, HUB, prompts, None, {"prompt_field": "q"})


@pytest.mark.parametrize(
    ("target", "draft", "complaint"),
    [
        ("htp://host:8000", HUB, "--target htp://host:8000: it does not begin with http:// or https://"),
        (HUB, "http://host:8000", "--draft http://host:8000: a URL, and this model is loaded here; give a directory"),
    ],
)
def test_a_url_is_no_name_of_a_model(tmp_path: Path, target: str, draft: str, complaint: str) -> None:
    """Of whatever scheme: it is not looked for as a directory or on the hub."""
    prompts = _prompts(tmp_path / "prompts.jsonl", [{"prompt": "a"}])
    with pytest.raises(UsageError, match=f"^{complaint}"):
        starting_config(target, draft, prompts)


def test_a_sample_is_rendered_and_tokenised(tmp_path: Path) -> None:
    """As a run would: lengths, the mean for `plan`, and rows that a run rejects, each kind with the key that chooses."""
    template = TEMPLATE + "{% if messages[0]['role'] == 'tool' %}{{ raise_exception('no tool') }}{% endif %}"
    target = _model(tmp_path / "target", template, max_position_embeddings=200)
    chats = [
        {"messages": [{"role": role, "content": "a"}, {"role": "user", "content": "b"}]} for role in ("critic", "user")
    ]
    rows = [{"prompt": "a " * length} for length in (*range(1, 20), 190)]
    prompts = _prompts(tmp_path / "p.jsonl", [*rows, *chats])
    text = starting_config(str(target), "target", prompts)
    lines = [line.strip() for line in text.splitlines()]
    (found,) = [line for line in lines if "rendered with the target's chat template" in line]

    assert found.startswith("# all 22 rows, rendered with the target's chat template: 20 prompts of ")
    assert any(
        line.startswith(
            "# 1 rows are longer than max_prompt_tokens = 134 and are not used; the context leaves no more: "
        )
        for line in lines
    )
    assert any("not used: " in line and "roles: {developer: system} of corpus.sources.0" in line for line in lines)
    assert _loaded(tmp_path, text).plan.prompt_tokens is not None
    with pytest.raises(
        UsageError, match=r"no prompt was accepted of 1: .*1 longer than corpus.max_prompt_tokens = 134"
    ):
        starting_config(str(target), "target", _prompts(tmp_path / "q.jsonl", [{"prompt": "a " * 190}]))


def test_a_sample_says_nothing_of_later_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A domain that begins after the sample, and a sample without a prompt, are no reason to refuse the file."""
    monkeypatch.setattr(prompt_sample, "SAMPLED", 2)
    target = _model(tmp_path / "target", TEMPLATE, max_position_embeddings=200)
    rows = [{"prompt": "a " * 190}, {"prompt": "a " * 190}, {"prompt": "a", "lang": "de"}]
    prompts = _prompts(tmp_path / "p.jsonl", rows)
    text = starting_config(str(target), "target", prompts, None, {"domain_field": "lang"})

    assert "# the first 2 rows, rendered with the target's chat template: none is a prompt that a run would use" in text
    assert (
        "# 2 rows are longer than max_prompt_tokens = 134 and are not used; the context leaves no more: lower" in text
    )
    assert "lang" == _loaded(tmp_path, text).corpus.sources[0].domain_field
    with pytest.raises(UsageError, match="no prompt was accepted of 2"):
        starting_config(str(target), "target", _prompts(tmp_path / "q.jsonl", rows[:2]))


def test_a_limit_below_the_context_can_be_raised(tmp_path: Path) -> None:
    """It is that of `init`, and the context leaves more."""
    target = _model(tmp_path / "target", TEMPLATE, max_position_embeddings=4000)
    rows = [{"prompt": "a"}, {"prompt": "a " * 2100}]
    text = starting_config(str(target), "target", _prompts(tmp_path / "p.jsonl", rows))
    assert "# 1 rows are longer than max_prompt_tokens = 2,048 and are not used; raise it\n" in text


def test_a_draft_that_is_larger_than_its_target_is_refused(tmp_path: Path) -> None:
    """As the pair stage does, which is a run later: most often the two options are in the wrong places."""
    target, prompts = _model(tmp_path / "target"), _prompts(tmp_path / "p.jsonl", [{"prompt": "a"}])
    model = tiny_llama(dtype=torch.bfloat16)
    model.model.layers.extend(tiny_llama(dtype=torch.bfloat16).model.layers)
    model.config.num_hidden_layers = len(model.model.layers)
    model.save_pretrained(tmp_path / "larger")
    tiny_tokenizer().save_pretrained(tmp_path / "larger")
    with pytest.raises(UsageError, match="a draft larger than its target cannot save time; swap the two"):
        starting_config(str(target), str(tmp_path / "larger"), prompts)
    assert starting_config(str(tmp_path / "larger"), str(target), prompts)


def test_few_rows_without_a_domain_are_said_as_they_are(tmp_path: Path) -> None:
    """No column that is not there, and no powers of ten."""
    target = _model(tmp_path / "target")
    rows = [{"prompt": f"a {number}", "temperature": 0.5, "note": "x"} for number in range(2)]
    text = starting_config(str(target), "target", _prompts(tmp_path / "p.jsonl", rows))
    assert "# all 2 rows are of one domain, `default`: none has a value in the column `domain`" in text
    assert "# about 2,667 epochs of 1 train prompts" in text
    config = _loaded(tmp_path, text)  # rows of the training are as long as the longest prompt, and not as the limit
    assert 0 < int(config.plan.longest_prompt_tokens or 0) < config.corpus.prompt_limit
    assert "rows: state more" not in text
    assert "# columns not used: note\n" in text  # the temperature is
    assert "# 2 rows of the log state temperature 0.5." in text


def test_the_longest_prompt_of_a_sample_is_said_to_be_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of a training are as long as the longest of all: a plan would take too few tokens for the most."""
    monkeypatch.setattr("pipeline.planning.prompt_sample.SAMPLED", 2)
    prompts = _prompts(tmp_path / "p.jsonl", [{"prompt": "a " * (number + 1)} for number in range(3)])
    text = starting_config(str(_model(tmp_path / "target")), "target", prompts)
    assert re.search(r"longest_prompt_tokens: \d+  # of the first 2 rows: state more if later ones are longer\n", text)


def test_a_draft_with_another_tokenizer_gets_the_targets(tmp_path: Path) -> None:
    """With what is shared in a comment; one that is quantized cannot be trained."""
    target, draft = _model(tmp_path / "target"), _model(tmp_path / "draft")
    (draft / "tokenizer.json").write_text((draft / "tokenizer.json").read_text().replace('"w9"', '"x9"'))
    prompts = _prompts(tmp_path / "prompts.jsonl", [{"prompt": f"w5 w9 w7 w{n}"} for n in range(10, 20)])
    text = starting_config(str(target), str(draft), prompts)
    said = "31 of 32 tokens are shared, 80.0% of your prompts' text; it must be trained afterwards"

    assert f"    vocabulary: target  # another tokenizer: {said}\n" in text
    assert "    # the draft's own tokenizer cannot write 20.0% of your prompts' text" in text
    assert "target" == _loaded(tmp_path, text).pair.draft.vocabulary
    assert "vocabulary" not in starting_config(str(target), SMALLER, prompts)
    quantize_in_name(draft)
    with pytest.raises(UsageError, match="is quantized, so it cannot be trained"):
        starting_config(str(target), str(draft), prompts)
