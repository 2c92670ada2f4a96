"""Config: precedence, anchored paths, and one clear line per mistake."""

from pathlib import Path

import pytest

from pipeline.config.loading import load_config, parse_config
from pipeline.config.pair import ReferenceRecipe
from pipeline.config.root import Config
from pipeline.errors import UsageError
from pipeline.running.jobs import jobs_of
from pipeline.running.settings import key_json

SMALL = "name: x\npair:\n  target: {source: reference}\n  draft: {source: reference}\ncorpus:\n  sources: [{path: reference}]\n"


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(SMALL)
    return path


def _error(path: Path, *overrides: str) -> str:
    with pytest.raises(UsageError) as caught:
        load_config(path, overrides)
    return str(caught.value)


@pytest.mark.parametrize(
    "path", sorted((Path(__file__).parents[3] / "configs").glob("*.yaml")), ids=lambda path: path.stem
)
def test_shipped_configs_parse(path: Path) -> None:
    """Every shipped config is valid."""
    assert path.stem == load_config(path).name


def test_precedence_is_defaults_then_file_then_set(small: Path) -> None:
    """The file wins over a default, and --set over both."""
    small.write_text(SMALL + "distill: {max_steps: 7}\n")
    assert (7, 16) == (load_config(small).distill.max_steps, load_config(small).distill.batch)
    assert 9 == load_config(small, ["distill.max_steps=9"]).distill.max_steps


def test_set_reaches_into_lists_and_missing_sections(small: Path) -> None:
    """--set takes positions of lists, and makes sections that the file leaves out."""
    config = load_config(small, ["corpus.sources.0.limit=5", "gate.min_gain=0.5"])
    assert (5, 0.5) == (config.corpus.sources[0].limit, config.gate.min_gain)


def test_an_unknown_key_names_path_value_nearest_and_allowed(small: Path) -> None:
    """A misspelt key is answered with where, what, the nearest valid key and what is allowed."""
    small.write_text(SMALL + "distill: {lerning_rate: 0.1}\n")
    message = _error(small)
    assert message.startswith(
        f"{small}: distill.lerning_rate = 0.1: unknown key; did you mean 'distill.learning_rate'?"
    )
    assert "max_steps" in message


def test_a_mistake_in_an_item_is_no_mistake_of_its_list(small: Path) -> None:
    """Pydantic finds a list with one bad item empty; a list that is empty is said."""
    assert 1 == len(_error(small, "corpus.sources.0.domain_field=null").splitlines())
    assert "corpus.sources = []: tuple should have at least 1 item" in _error(small, "corpus.sources=[]")


def test_a_mistake_is_blamed_on_the_file_or_on_set(small: Path) -> None:
    """Whoever wrote it."""
    small.write_text(SMALL + "distill: {max_steps: 0}\n")
    in_file, on_line = _error(small, "distill.batch=0").splitlines()
    between = _error(small, "distill.max_steps=1", "gate.min_speedup=2")
    assert in_file.startswith(f"{small}: distill.max_steps = 0: ")
    assert on_line.startswith("--set: distill.batch = 0: ")
    assert between.startswith(f"{small} with --set: gate: min_speedup needs a prediction")


@pytest.mark.parametrize(
    ("override", "wanted"),
    [
        ("quantize.variants=int8", "quantize.variants = 'int8': expected a list, like [int8]"),
        ("quantize.variants={a: 1}", "quantize.variants = {'a': 1}: expected a list"),
        ("gate.profile=3", "gate.profile = 3: expected a mapping, like {key: value}"),
        ("gate.max_latency_seconds=3", "gate.max_latency_seconds = 3: expected a mapping, like {key: value}"),
        ("gate.max_latency_seconds={p95: 0}", "gate.max_latency_seconds.p95 = 0: input should be greater than 0"),
        ("gate.max_latency_seconds={p0.99: 3}", "p0.99 is not a quantile from p50 to p99; write it as in {p95: 2.0,"),
        ("gate.max_latency_seconds={99: 3}", "gate.max_latency_seconds: 99 is not a quantile from p50 to p99"),
        ("gate.max_latency_seconds.p97.5=3", "write --set 'gate.max_latency_seconds={p97.5: 3}', in braces"),
        (
            "gate.max_latency_seconds.p99=3",
            "gate: max_latency_seconds needs a prediction: set gate.load and gate.profile",
        ),
        ("quantize=int8", "quantize = 'int8': expected a section (keys: variants, "),
        (
            "gate.profile=costs.json",
            "gate: profile is used at a load: set gate.load too",
        ),
    ],
)
def test_what_is_wanted_is_said_in_words_of_the_config(small: Path, override: str, wanted: str) -> None:
    """Not in those of the parser."""
    assert wanted in _error(small, override)


@pytest.mark.parametrize(
    "override",
    [
        "promote.notice.program=/bin/sh",
        "promote.notice={program: /bin/sh}",
        "promote={notice: {program: /bin/sh}}",
        "promote.notice.url=http://elsewhere/",
        "promote.notice=null",
        "promote={}",
    ],
)
def test_no_override_changes_who_is_called(small: Path, override: str) -> None:
    """Who may start a run must not choose a program. Other settings of the section stay free."""
    small.write_text(SMALL + "promote: {notice: {program: /usr/bin/reload}}\n")
    assert "--set promote.notice: set it in the config file" in _error(small, override)
    assert "--set promote.export.converter: set it" in _error(
        small, "promote.export={engine: llama.cpp, out: x, converter: /e.py}"
    )
    assert load_config(small, ["promote.by_hand=true"]).promote.by_hand


@pytest.mark.parametrize(
    ("notice", "said"),
    [
        ("{}", "give one receiver: url, url_variable or program"),
        ("{url: 'http://h/', program: /p}", "give one receiver: url, url_variable or program"),
        ("{program: reload.sh}", "promote.notice.program"),
        ("{program: /p, key_variable: T}", "key_variable is for a url"),
        ("{url: 'ftp://h/x'}", "ftp://h/x is not a URL that can be called: it does not begin with http"),
        ("{url: 'https://user:hidden@h/x'}", "it holds credentials"),
    ],
)
def test_a_receiver_is_one_url_or_one_program(small: Path, notice: str, said: str) -> None:
    """A mistake is named; credentials are not shown."""
    small.write_text(SMALL + f"promote: {{notice: {notice}}}\n")
    message = _error(small)
    assert said in message
    assert "hidden" not in message


def test_an_unknown_key_inside_a_list_names_its_position(small: Path) -> None:
    """A misspelt key of a source lists the keys of a source."""
    message = _error(small, "corpus.sources.0.domian=x")
    assert "corpus.sources.0.domian = 'x': unknown key; did you mean 'corpus.sources.0.domain'?" in message


def test_an_ill_typed_value_is_named_with_what_is_allowed(small: Path) -> None:
    """The message holds the path, the value and the rule, a line a mistake. A limit of NaN would let everything pass."""
    assert "distill.max_steps = 'many': input should be a valid integer" in _error(small, "distill.max_steps=many")
    assert "distill.max_steps = 0: input should be greater than 0" in _error(small, "distill.max_steps=0")
    assert "'lk_hybrid' or 'cross_entropy'" in _error(small, "distill.loss=kl")
    assert "gate.min_gain = nan" in _error(small, "gate.min_gain=.nan")
    assert 2 == len(_error(small, "distill.max_steps=0", "gate.gain=1").splitlines())


def test_one_key_of_the_recipe_can_be_set_alone(small: Path) -> None:
    """--set of one key keeps the defaults of its neighbours."""
    shape = load_config(small, ["pair.reference.target.steps=10"]).pair.reference.target
    assert (10, ReferenceRecipe().target.hidden) == (shape.steps, shape.hidden)


def test_a_repeated_key_is_an_error(small: Path) -> None:
    """YAML's last-one-wins would hide a mistake."""
    small.write_text(SMALL + "seed: 1\nseed: 2\n")
    assert "key 'seed' appears twice" in _error(small)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("- a\n", "a config must be a mapping of sections, not a list"),
        ("name: [\n", "not valid YAML"),
        ("name: x\n", "pair: required, and missing"),
    ],
)
def test_a_file_that_is_no_config_says_so(tmp_path: Path, text: str, expected: str) -> None:
    """Wrong YAML and wrong shapes are one line with the file's name."""
    path = tmp_path / "config.yaml"
    path.write_text(text)
    message = _error(path)
    assert expected in message
    assert str(path) in message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("distill: {<<: {max_steps: 5}}\n", "merge keys (<<) are not read; write the values out"),
        ("seed: 0100\n", "0100 begins with 0, which is octal in YAML; leave the 0 out"),
        ("on: 1\n", "True as a key: keys are text; correct it, or quote it"),
        ("~: 1\n", "None as a key: keys are text"),
    ],
)
def test_what_yaml_reads_otherwise_than_people_is_refused(small: Path, text: str, expected: str) -> None:
    """With what to write."""
    small.write_text(SMALL + text)
    assert expected in _error(small)


def test_a_name_fits_into_the_id_of_a_run(small: Path) -> None:
    """An id has at most 121 characters."""
    assert 100 == len(load_config(small, [f"name={'k' * 100}"]).name)
    assert "at most 100 characters" in _error(small, f"name={'k' * 101}")


def test_an_emoji_in_json_escapes_is_one_character(small: Path) -> None:
    """As in JSON; half of a pair is not text."""
    assert "🙂" == load_config(small, ['tracking.experiment="\\ud83d\\ude42"']).tracking.experiment
    assert "not valid YAML" in _error(small, 'tracking.experiment="\\ud83d"')


def test_missing_and_unreadable_files_are_named(tmp_path: Path) -> None:
    """No traceback for a path that is not there, or is a directory."""
    assert f"{tmp_path / 'no.yaml'}: no such config file; `understudy init` prints one" == _error(tmp_path / "no.yaml")
    assert "not a YAML text file" in _error(tmp_path)


@pytest.mark.parametrize(
    "override",
    [
        "distill.max_steps",
        "=3",
        "a..b=3",
        "distill.max_steps=[",
        "corpus.sources.7.path=x",
        "corpus.sources.0.path.x=1",
    ],
)
def test_a_malformed_override_is_quoted_back(small: Path, override: str) -> None:
    """--set mistakes name the override."""
    assert f"--set {override}" in _error(small, override)


def test_local_paths_start_at_the_config_file(small: Path) -> None:
    """Paths do not depend on where the command is called from."""
    config = load_config(small, ["pair.target.source=./t", "pair.draft.source=./d", "corpus.sources=[{path: p.jsonl}]"])
    base = small.parent.resolve()
    assert (str(base / "t"), str(base / "p.jsonl")) == (config.pair.target.source, config.corpus.sources[0].path)
    timed = load_config(
        small, ["gate.load={requests_per_second: 1}", "gate.profile=a.json", "gate.champion_profile=b.json"]
    )
    assert ({"unquantized": str(base / "a.json")}, str(base / "b.json")) == (
        timed.gate.profile,
        timed.gate.champion_profile,
    )


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["pair.target.source=org/model"], "needs `revision`"),
        (
            ["pair.target={source: org/model, revision: main}"],
            "revision is 'main'; a hub model needs",
        ),
        (["pair.target.source=./t"], "`reference` is a pair"),
        (["pair.target.source=./t", "pair.draft.source=./d"], "exist only with the reference pair"),
        (["corpus.splits.train=0.9"], "must sum to 1"),
        (["pair.target.dtype=bfloat16"], "made in float32"),
        (["pair.reference.target.heads=5"], "do not divide"),
        (
            ["pair.target.device_map=auto", "execution.local=2"],
            "execution.local is 2, and pair.target.device_map",
        ),
        (["pair.target.device_map={a: gpu}"], "pair.target.device_map"),
        (["pair.target.device_map=all"], "pair.target.device_map"),
        (["device=gpu"], "device is 'gpu'; the devices are auto, cpu, cuda and cuda:N"),
        (["device=cuda:x"], "device is 'cuda:x'; the devices are"),
        (["device=mps"], "device is mps, and Apple's GPUs have no float64"),
        (["evaluate.gamma=17"], "evaluate.gamma is 17"),
        (["evaluate.convention=vllm", "generate.lookahead=3"], "generate.lookahead must be at least"),
    ],
)
def test_sections_that_contradict_each_other_are_refused(small: Path, overrides: list[str], expected: str) -> None:
    """What is valid key by key may still make no sense together."""
    assert expected in _error(small, *overrides)


def test_a_config_survives_its_own_dump(small: Path) -> None:
    """run.json stores the dump; reading it back gives the same config."""
    config = load_config(small)
    assert config == parse_config(config.model_dump(mode="json"), "here")


def test_sections_are_frozen(small: Path) -> None:
    """Nobody changes a config under a running stage."""
    with pytest.raises(ValueError, match="frozen"):
        load_config(small).distill.max_steps = 3  # type: ignore[misc]


def test_every_key_has_a_description() -> None:
    """`docs/configuration.md` is made from these."""

    def walk(model: type, path: str) -> list[str]:
        bare = []
        for name, field in model.model_fields.items():  # type: ignore[attr-defined]
            inner = field.annotation
            if hasattr(inner, "model_fields"):
                bare += walk(inner, f"{path}{name}.")
            elif not field.description:
                bare.append(f"{path}{name}")
        return bare

    assert [] == walk(Config, "")


@pytest.mark.parametrize(
    ("sampling", "engine", "said"),
    [
        ("{temperature: 0}", "server", None),
        ("{temperature: 0, top_p: 0.9}", "server", None),
        ("{}", "server", None),
        ("{temperature: 0.7, top_k: 20}", "server", None),
        ("{temperature: 0.7}", "server", "use_answers with a target on servers needs `sampling` at temperature 0"),
        ("{top_p: 0.9}", "server", "use_answers with a target on servers needs `sampling` at temperature 0"),
        ("{top_k: 200}", "server", "use_answers with a target on servers needs `sampling` at temperature 0"),
        ("{temperature: 0.7, top_p: 0.9}", "local", None),
    ],
)
def test_recorded_answers_need_known_log_p(small: Path, sampling: str, engine: str, said: str | None) -> None:
    """A scoring by servers gives log p of the likeliest tokens at temperature 1: enough for some sampling settings only. A target
    that is loaded here gives that of all tokens."""
    target = "{source: server, tokenizer: ./t, revision: v1}" if engine == "server" else "{source: ./t}"
    servers = "{engine: server, server: {endpoints: ['http://a']}}" if engine == "server" else "{}"
    small.write_text(
        f"name: x\npair:\n  target: {target}\n  draft: {{source: ./d}}\nsampling: {sampling}\ngenerate: {servers}\n"
        "corpus:\n  sources: [{path: log.jsonl, use_answers: true}]\n"
    )
    assert said is None or said in _error(small)
    if said is None:
        assert load_config(small).corpus.sources[0].use_answers


def test_recorded_answers_are_of_one_turn(small: Path) -> None:
    """Later turns follow on the target's own answers."""
    small.write_text(SMALL)
    assert "use_answers and every_turn exclude each other" in _error(
        small, "corpus.sources.0.use_answers=true", "corpus.sources.0.every_turn=true"
    )


@pytest.mark.parametrize(("domain", "said"), [("x" * 201, "201 characters, at most 200"), ('"a\\0b"', "without NUL")])
def test_the_domain_of_a_source_is_checked_as_that_of_a_row(small: Path, domain: str, said: str) -> None:
    """It becomes a metric and a row of tables."""
    message = _error(small, f"corpus.sources=[{{path: reference, domain: {domain}}}]")
    assert "corpus.sources.0.domain" in message
    assert said in message


@pytest.mark.parametrize(
    "value", ["yes", "true", "9223372036854775807", "'99999999999'", "2026-01-01", "!!binary YWJj", "!!set {a}"]
)
def test_a_number_is_a_number_that_can_be_counted(small: Path, value: str) -> None:
    """YAML's `yes` is not 1, and 2^63 steps are a mistake."""
    small.write_text(SMALL + f"distill: {{max_steps: {value}}}\n")
    assert 1 == len(_error(small).splitlines())
    assert "max_steps" in _error(small) or "not valid YAML" in _error(small)


def test_a_date_is_text(small: Path) -> None:
    """A name may look like a date; `since` is one."""
    small.write_text(SMALL.replace("name: x", "name: 2026-01-01"))
    assert "2026-01-01" == load_config(small).name


@pytest.mark.parametrize(
    "text",
    ["2026-11-24T10:00:00Z", "2026-11-24T12:00:00+02:00", "'2026-11-24 10:00Z'", "2026-11-24T10:00:00.000+00:00"],
)
def test_a_moment_is_one_key_whatever_its_zone(small: Path, text: str) -> None:
    """Rows since a change are of one corpus, also where another machine has another zone."""
    corpus = load_config(small, ["corpus.sources=[{path: log.jsonl}]", f"corpus.since={text}"]).corpus
    assert "2026-11-24T10:00:00Z" == corpus.since
    assert 1795514400.0 == corpus.since_seconds


@pytest.mark.parametrize("text", ["2026-11-24T10:00:00", "2026-11-24", "14d", "'1795514400'", "0001-01-01T00:00+05:00"])
def test_a_moment_has_a_zone(small: Path, text: str) -> None:
    """A time without one would be another moment on another machine."""
    with pytest.raises(UsageError, match=r"corpus\.since: .* is not a time with a zone; write it like 2026-11-24T10:0"):
        load_config(small, ["corpus.sources=[{path: log.jsonl}]", f"corpus.since={text}"])


def test_the_reference_prompts_have_no_times(small: Path) -> None:
    """They are no log."""
    with pytest.raises(UsageError, match=r"since needs a log, a source whose rows have times"):
        load_config(small, ["corpus.sources=[{path: reference}]", "corpus.since=2026-11-24T10:00:00Z"])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x: [" + "1," * 20_000 + "1]\n", "more than 20,000 values"),
        ("\n" * 2_000_000, "larger than 1,048,576 bytes"),
        ("x: " + "a" * 500_000 + "\n", "unknown key"),
    ],
    ids=["values", "bytes", "text"],
)
def test_a_config_of_any_size_is_answered_soon(small: Path, text: str, said: str) -> None:
    """yaml takes 0.1 ms for a value; a pattern of addresses took minutes for a long word (tests/unit/test_patterns.py)."""
    small.write_text(SMALL + text)
    assert said in _error(small)


def test_a_watched_link_stays_a_link(small: Path) -> None:
    """`champion` points to another version after a promotion, while `understudy watch` runs."""
    (small.parent / "version-1").mkdir()
    (small.parent / "champion").symlink_to("version-1")
    config = load_config(small, ["watch.expected=champion", "watch.log=champion"])
    assert [str(small.parent / "champion")] * 2 == [config.watch.expected, config.watch.log]


def test_prompts_are_trained_on_where_their_distributions_are_known(small: Path) -> None:
    """Not by the words of users, not from a server that scores a token a request; and their place in the log is taken."""
    assert "on the words of the prompts, which are not the target's" in _error(
        small, "distill={prompt_weight: 0.5, loss: cross_entropy}"
    )
    assert "what prompts weigh is prompt_weight" in _error(small, "distill.segment_shares={prompt: 0.3}")
    server = "generate={engine: server, server: {endpoints: [{url: 'http://127.0.0.1:1'}], api: llama.cpp}}"
    served = ("pair.target={source: server, tokenizer: ./t}", "pair.draft.source=./d", "corpus.sources=[{path: ./p}]")
    assert "llama-server scores no prompts" in _error(small, *served, server, "distill.prompt_weight=0.5")
    assert load_config(small, [*served, server]).distill.prompt_weight == 0
    assert "'prompt' is what the log of a training calls the prompts" in _error(
        small, "generate.segments.rules=[{name: prompt, begin: '<'}]"
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("distill.lora={rank: 2}", "distill.lora: not available for a draft of kind"),
        ("distill.on_policy.rounds=1", "distill.on_policy.rounds: not available for a draft of kind"),
        ("distill={shard: true, processes: 2}", "distill.shard: not available for a draft of kind"),
        ("distill.gradient_checkpointing=true", "distill.gradient_checkpointing: not available for a draft of kind"),
        ("distill.compile=true", "distill.compile: not available for a draft of kind"),
        ("promote.export={engine: sglang, out: ./e}", "is not exported for SGLang; choose one of vllm"),
        (
            ("pair.draft.head={kind: eagle3, layer: speculators}", "promote.export={engine: sglang, out: ./e}"),
            "SGLang computes no eagle3 head with the normed states in its residual stream",
        ),
        (
            ("pair.draft.head={kind: eagle3, layer_ids: [0, 2, 4]}", "promote.export={engine: tensorrt-llm, out: ./e}"),
            "TensorRT-LLM computes no eagle3 head with the target's embedding",
        ),
        (
            ("pair.draft={source: target, layers: 2}", "promote.export={engine: tgi, out: ./e}"),
            "promote.export.engine: a draft of kind plain is not exported for TGI (it serves no draft model, ",
        ),
        ("pair.draft.head={kind: medusa, layer_ids: [1]}", "layer_ids is of eagle3, and kind is medusa"),
        ("pair.draft.head={kind: medusa, places: 3}", "evaluate.gamma is 5, and the heads propose at most 3 tokens"),
        ("pair.draft.head={kind: eagle3, places: 4}", "places is of medusa, and kind is eagle3"),
        ("distill.unrolled_steps=2", "distill.unrolled_steps: not available for a draft of kind medusa"),
    ],
)
def test_what_a_head_has_not_is_refused_with_the_config(small: Path, change: str | tuple[str, ...], said: str) -> None:
    head = (
        "pair.target.source=./t",
        "pair.draft={source: target, head: {kind: medusa}}",
        "corpus.sources=[{path: ./p}]",
    )
    assert load_config(small, head).pair.draft.head is not None
    assert said in _error(small, *head, *([change] if isinstance(change, str) else change))


@pytest.mark.parametrize(
    ("draft", "said"),
    [
        (
            "{source: target, layers: 2, vocabulary: target}",
            "a draft of source target has the target's vocabulary already",
        ),
        ("{source: target, head: {kind: medusa}, vocabulary: target}", "has the target's vocabulary already; leave"),
        ("{source: reference, vocabulary: target}", "a draft of source reference has the target's vocabulary already"),
        ("{source: ./d, tokens: {a: b}}", "`tokens` needs `vocabulary: target`"),
        ("{source: ./d, vocabulary: target, tokens: {a: ''}}", "tokens.a is empty; write the draft's text for it"),
        ("{source: ./d, vocabulary: draft}", "'own' or 'target'"),
    ],
)
def test_only_a_model_of_its_own_gets_the_vocabulary_of_the_target(small: Path, draft: str, said: str) -> None:
    """Other drafts have it. `tokens` is for nothing else."""
    own = ("pair.target.source=./t", "corpus.sources=[{path: ./p}]")
    assert said in _error(small, *own, f"pair.draft={draft}")
    config = load_config(small, (*own, "pair.draft={source: ./d, vocabulary: target, tokens: {<x>: y}}"))
    assert {"<x>": "y"} == config.pair.draft.tokens


def test_a_default_is_one_value_however_it_is_stated(small: Path) -> None:
    """Unset, null and the number that null stands for train the same draft, under one key."""
    pair = (
        "pair.target.source=./t",
        "pair.draft={source: target, head: {kind: eagle3}}",
        "corpus.sources=[{path: ./p}]",
    )
    stated = [(), ("distill.unrolled_steps=null",), ("distill.unrolled_steps=3",), ("distill.unrolled_steps=4",)]
    jobs = [next(job for job in jobs_of(load_config(small, (*pair, *one))) if job.id == "distill") for one in stated]
    keys = [key_json(job.settings) for job in jobs]
    assert keys[0] == keys[1] == keys[2] != keys[3]


def test_a_model_has_no_places_to_unroll(small: Path) -> None:
    """A setting that nothing would read is refused."""
    layers = ("pair.target.source=./t", "pair.draft={source: target, layers: 2}", "corpus.sources=[{path: ./p}]")
    for config in ((), layers):
        said = _error(small, *config, "distill.unrolled_steps=2")
        assert "distill.unrolled_steps: not available for a draft of kind plain" in said


def test_stored_tokens_are_64_or_what_servers_list(small: Path) -> None:
    """A number is taken as it is, and refused where servers list fewer."""
    served = ("pair.target={source: server, tokenizer: ./t}", "pair.draft.source=./d", "corpus.sources=[{path: ./p}]")
    few = "generate={engine: server, server: {endpoints: [{url: 'http://127.0.0.1:1'}], logprobs: 20}}"
    assert 64 == load_config(small).generate.stored_tokens
    assert 7 == load_config(small, ["generate.distribution_tokens=7"]).generate.stored_tokens
    assert 20 == load_config(small, [*served, few]).generate.stored_tokens
    assert "generate.distribution_tokens is 21, more than generate.server.logprobs = 20" in _error(
        small, *served, few, "generate.distribution_tokens=21"
    )
