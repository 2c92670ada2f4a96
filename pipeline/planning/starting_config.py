"""A config to start from, with every choice explained in a comment: from the names of two models and a file of prompts.

The hub is asked for a commit, and nothing is fetched: what is not on this machine is left to the defaults, with a comment.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pipeline.config.corpus import Splits
from pipeline.config.credentials import masked
from pipeline.config.gate import GateConfig
from pipeline.config.generate import GenerateConfig
from pipeline.config.pair import TARGET
from pipeline.config.urls import HTTP, wrong_with
from pipeline.corpus.rows import DEFAULT_DOMAIN
from pipeline.drafts.base_draft import has_other_vocabulary, require_float_weights
from pipeline.drafts.fitting_head import require_fitting
from pipeline.drafts.kinds import EAGLE3, KINDS, MEDUSA, KindName
from pipeline.drafts.shared_tokens import Vocabularies
from pipeline.drafts.transplant import require_one_table, text_notes
from pipeline.errors import UsageError
from pipeline.escaping.terminal import printable
from pipeline.models.built import read_only_empty_model
from pipeline.models.generation_config import sampling_defaults
from pipeline.models.loading import load_tokenizer
from pipeline.models.shape import find_width
from pipeline.models.tokenizers import stop_token_ids
from pipeline.planning.log_columns import LogColumns
from pipeline.planning.named_inputs import (
    Model,
    Prompts,
    draft_of_target,
    named_model,
    read_prompts,
    require_smaller,
    require_two_models,
    served_model,
)
from pipeline.planning.pair_name import pair_name
from pipeline.planning.prompt_sample import PromptSample, sample_prompts
from pipeline.speculation.deployed import FILE, StatedSettings, of_log, resolve

_BATCH = 16
_PROMPT = 2048  # tokens
_EPOCHS = 3


def starting_config(
    target_name: str,
    draft_name: str,
    prompts_path: Path,
    tokenizer: str | None = None,
    columns: Mapping[str, str | None] = MappingProxyType({}),
    trust_remote_code: bool = False,
    prompts_name: str | None = None,
    head: KindName | None = None,
) -> str:
    """The YAML text. `target_name` may be the URL of a server; then `tokenizer` names the target's tokenizer. `columns`: of the
    prompts, by the key of a source; None, or no key: what is recognised. `prompts_name`: of a data set of the hub, as a config
    names it. `head`: the kind of an untrained head on the target's hidden states, in the place of its layers. A draft that is a
    head's directory is trained further.

    Raises UsageError; UnderstudyError for models that do not form a pair, unreadable prompts, a server that does not answer.
    """
    prompts = read_prompts(prompts_path, columns, prompts_name)
    is_served = "://" in target_name
    if is_served and (wrong := wrong_with(target_name, (*HTTP, "unix"))):
        raise UsageError(f"--target {masked(target_name)}: {wrong}")
    if head is not None and is_served:
        raise _not_served(f"--draft-kind {head}")
    if is_served and tokenizer is None:
        raise UsageError(
            f"--target {masked(target_name)}: a server names no tokenizer; add --tokenizer DIRECTORY or --tokenizer org/name"
        )
    if tokenizer is not None and not is_served:
        raise UsageError("--tokenizer: it is for a target that runs on a server, whose URL is --target; leave it out")
    made = draft_name == TARGET and not is_served
    named = None if made else named_model(draft_name, "draft", trust_remote_code)
    if is_served and named is not None and named.published is not None:  # before the server is asked
        raise _not_served(f"--draft {draft_name}")
    if tokenizer is not None:
        target = served_model(target_name, tokenizer, trust_remote_code)
    else:
        target = named_model(target_name, "target", trust_remote_code)
    draft = named or draft_of_target(target, head)
    require_two_models(target, draft, draft_name)
    if target.directory and draft.directory and draft.published is not None:
        require_fitting(draft.directory, target.directory, trust_remote_code, "--draft")
    require_smaller(target, draft)
    if target.chat_template is False and (chats := prompts.chats):
        raise UsageError(
            f"--prompts {prompts_path}: {chats:,} rows are chats, and the target's tokenizer has no chat template; "
            "give rows with a `prompt`, or an instruction-tuned target"
        )
    # A line break in the name of a file or a column would end a comment and begin a key.
    text = "\n".join(map(printable, _lines(target, draft, prompts))) + "\n"
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UsageError("a path is not UTF-8 text; rename it") from None
    return text


def _not_served(option: str) -> UsageError:
    return UsageError(
        f"{option}: a head reads hidden states of its target, which servers do not give; name the target as a directory or a "
        "model of the hub"
    )


def _tokenizer(model: Model) -> Any:
    assert model.directory is not None  # it is on this machine
    return load_tokenizer(model.directory, model.trusted)


def _lines(target: Model, draft: Model, prompts: Prompts) -> Iterator[str]:
    name = pair_name(target.served_name or target.source)
    rendered = prompts.log.has_template(_tokenizer(target)) if target.directory else None
    lengths = _lengths(target, draft)
    sample = _sample(target, prompts, lengths, rendered)
    yield "# A config to start from. Check it with `understudy run --dry-run`; docs/configuration.md explains every key."
    yield f"name: {_text(name)}"
    yield ""
    yield from _pair(target, draft, sample)
    yield ""
    yield from _corpus(target, prompts)
    yield from _rendering(target, lengths, rendered, sample)
    if target.url is not None:
        yield from _server(target)
    yield ""
    yield from _sampling(target, prompts.log)
    yield ""
    kind = draft.published.kind.name if draft.published else draft.head
    yield from _training(prompts, target.url is not None, kind)
    yield ""
    yield from _judgement(draft)
    yield ""
    if sample and sample.mean is not None:
        yield from _plan(sample, sample.mean)
        yield ""
    yield "promote:"
    yield f"  target_name: {_text(name)}  # the registered model is called NAME-draft"
    yield "  # Runs with this name share a champion: keep it when the target is fine-tuned or moved, and choose another for"
    yield "  # another target."


def _pair(target: Model, draft: Model, sample: PromptSample | None) -> Iterator[str]:
    yield "pair:"
    for role, model in (("target", target), ("draft", draft)):
        yield f"  {role}:"
        if model.url is not None:
            yield from _served_target(model)
            continue
        yield f"    source: {_text(model.source)}"
        if model.layers:
            yield f"    layers: {model.layers}  # the first, the last, and others evenly spaced; fewer are faster and agree less"
        if model.head:
            yield f"    head: {{kind: {model.head}}}  # {_OF_HEADS[model.head]}; trained from nothing"
        if model.published:
            yield f"    # its config.json: a head of kind {model.published.kind.name}, which is trained further;"
            yield f"    # {model.published.summary}"
        if model.revision:
            when = "  # the commit that the hub had when this file was written" if model.asked else ""
            yield f"    revision: {_text(model.revision)}{when}"
        if role == "draft":
            yield from _vocabulary(target, model, sample)
        why = (
            "as it was saved" if model.directory else "not on this machine; float32 is faster on a CPU without bfloat16"
        )
        yield f"    dtype: {model.dtype}  # {why}"
    if target.trusted:
        yield "  trust_remote_code: true  # code that ships with a model runs, as --trust-remote-code allowed"


def _corpus(target: Model, prompts: Prompts) -> Iterator[str]:
    """The section up to its sources and domains; how prompts are rendered follows."""
    yield "corpus:"
    yield "  sources:"
    kinds = ", ".join(f"{count:,} with `{kind}`" for kind, count in prompts.kinds.items())
    yield f"    - path: {_text(prompts.name)}  # {prompts.rows:,} rows: {kinds}"
    yield from _columns(prompts, target)
    if prompts.follow_ups:
        yield f"      every_turn: false  # {prompts.follow_ups:,} chats have several user messages; true uses each of them"
    if prompts.sessions:
        yield f"      every_answer: false  # {prompts.sessions:,} chats hold several answers; true: each of them is a completion"
    if target.url is not None or prompts.is_log:
        yield from prompts.log.lines()
    yield from _domains(prompts)


def _judgement(draft: Model) -> Iterator[str]:
    """The sections `evaluate` and `gate`."""
    yield "evaluate:"
    yield "  convention: user  # how target calls are counted: user, transformers, vllm or openvino"
    gamma = min(5, (draft.published and draft.published.longest) or 5)
    most = "; the head proposes no more" if gamma < 5 else ""
    yield f"  gamma: {gamma}  # draft length of the reported figures and of the decision{most}"
    yield ""
    yield "gate:"
    yield "  min_gain: 0.0  # smallest gain in acceptance rate over the champion or base draft; 0.01 is 1 point"
    yield "  domain_margin: 0.01  # largest loss of acceptance rate in a domain"


def _plan(sample: PromptSample, mean: float) -> Iterator[str]:
    yield "plan:"
    yield f"  prompt_tokens: {mean:.1f}  # mean of the rows above, for `plan`; remove both lines if you take other prompts"
    part = f"  # of the first {sample.counts.rows:,} rows: state more if later ones are longer"
    yield f"  longest_prompt_tokens: {max(sample.lengths)}{part if sample.counts.over_limit else ''}"


def _vocabulary(target: Model, draft: Model, sample: PromptSample | None) -> Iterator[str]:
    """The key of a draft with another tokenizer than the target's. UsageError for one that cannot be given the target's."""
    if target.directory is None or draft.directory is None or draft.source == TARGET or draft.published:
        return
    width, tokenizer, own = find_width(target.directory, target.trusted), _tokenizer(target), _tokenizer(draft)
    if not has_other_vocabulary(tokenizer, own, width):
        return
    require_float_weights(draft.directory)
    require_one_table(read_only_empty_model(draft.directory, draft.trusted), f"--draft {draft.source}")
    vocabularies = Vocabularies(tokenizer, own, width, find_width(draft.directory, draft.trusted))
    shared = vocabularies.shared({}, stop_token_ids(target.directory, tokenizer))
    first, *more = text_notes(vocabularies, shared, sample.tokens if sample else {})
    yield f"    vocabulary: target  # another tokenizer: {first}"
    yield from (f"    # {note}" for note in more)


def _served_target(model: Model) -> Iterator[str]:
    yield "    source: server  # generate.server runs it; it is not loaded here"
    yield f"    tokenizer: {_text(model.source)}"
    yield "    revision: null  # what you call the weights that are served, such as a commit or a date; no server reports it"
    yield f"    dtype: {model.dtype}  # the number format in which it is served; no server reports it"
    if model.directory and not (model.directory / "config.json").is_file():
        yield "    # To export a draft, put the target's config.json beside the tokenizer."


def _server(target: Model) -> Iterator[str]:
    yield "  engine: server"
    yield "  server:"
    yield f"    api: {target.api}"
    yield "    endpoints:"
    yield f"      - {_text(target.url)}  # more servers of the same weights make generation faster"
    if target.api == "vllm":
        yield f"    model: {_text(target.served_name)}"
    yield "    logprobs: 128" + ("  # vLLM: --max-logprobs 128; its default allows 20" if target.api == "vllm" else "")
    yield "    concurrency: 32  # requests at a time to each endpoint; tokens_per_second and token_budget limit what is asked"
    if target.api == "vllm":
        yield "    # With a temperature other than 1, or cut-offs: start vLLM with --logprobs-mode processed_logprobs too."


def _columns(prompts: Prompts, target: Model) -> Iterator[str]:
    """The columns that were recognised, as keys, so that the config has how its prompts are read."""
    yield f"      # read as {prompts.layout}"
    for key, column in prompts.columns.items():
        yield f"      {key}: {_text(column)}"
    if prompts.system:
        yield f"      # system_field: {_text(prompts.system)}  # puts this column before each prompt, as a system message"
    if prompts.further:
        yield f"      # input_field: {_text(prompts.further)}  # puts this column after each prompt"
    is_log = target.url is not None or prompts.is_log
    of_log = {**prompts.log.answers, **prompts.log.times} if is_log else {}  # which lines below speak of
    if unused := [column for column in prompts.unused if column not in of_log]:
        yield f"      # columns not used: {', '.join(map(_text, unused[:12]))}"
    if prompts.foreign_answers:
        yield f"      # not used: {prompts.foreign_answers}, which the target has not given; it answers these prompts itself"


def _domains(prompts: Prompts) -> Iterator[str]:
    """Whether the gate will have enough examination prompts: a comment, because only the user can add some."""
    shown = ", ".join(f"{_text(domain)} {count:,}" for domain, count in prompts.domains.most_common(8))
    if set(prompts.domains) == {DEFAULT_DOMAIN}:
        none = f"none has a value in the column `{prompts.domain_field}`"
        yield f"  # all {prompts.rows:,} rows are of one domain, `{DEFAULT_DOMAIN}`: {none}"
    else:
        yield f"  # rows by domain (column `{prompts.domain_field}`): {shown}"
    least, (domain, rows) = GateConfig().min_prompts_per_domain, min(prompts.domains.items(), key=lambda item: item[1])
    examined = round(rows * Splits().examination)
    if examined < least:
        yield f"  # {_text(domain)} will have about {examined} examination prompts. The gate needs {least} per domain:"
        yield "  # add prompts, or lower gate.min_prompts_per_domain."


@dataclass(frozen=True)
class _Lengths:
    """The longest completion and prompt; `known`: what they follow from."""

    new: int
    prompt: int
    known: str
    is_context: bool  # a prompt has all that the context leaves


def _lengths(target: Model, draft: Model) -> _Lengths:
    """Prompt, completion and lookahead fill the context at most."""
    if draft.published is not None:  # it has its target's
        draft = replace(draft, context=target.context)
    contexts = [model.context for model in (target, draft) if model.context]
    lookahead = GenerateConfig().lookahead
    context = min(contexts) if len(contexts) == 2 else min([4096, *contexts])
    served = _server_defaults(target).get("max_new_tokens")
    new = max(2, min(512, context // 4, served if isinstance(served, int) else 512))
    room = context - new - lookahead
    prompt = min(_PROMPT, room)
    if prompt < 1:
        raise UsageError(f"the pair's context of {context} tokens leaves no room for a prompt; choose other models")
    known = (
        f"the pair's context is {context:,} tokens"
        if len(contexts) == 2
        else "a model is not on this machine: check its context"
    )
    return _Lengths(new, prompt, known, room <= _PROMPT)


def _sample(target: Model, prompts: Prompts, lengths: _Lengths, rendered: bool | None) -> PromptSample | None:
    """What the target's tokenizer makes of the prompts; None where it is not on this machine."""
    if target.directory is None or target.chat_template is None:
        return None
    wanted = target.chat_template if rendered is None else rendered
    width = find_width(target.directory, target.trusted) if (target.directory / "config.json").is_file() else None
    columns, tokenizer = dict(prompts.columns), _tokenizer(target)
    return sample_prompts(prompts.path, columns, tokenizer, wanted, lengths.prompt, width, lengths.is_context)


def _rendering(target: Model, lengths: _Lengths, rendered: bool | None, sample: PromptSample | None) -> Iterator[str]:
    yield f"  max_prompt_tokens: {lengths.prompt}  # longer prompts are rejected; {lengths.known}"
    if target.chat_template is None:
        yield "  chat_template: null  # apply the chat template if the target's tokenizer has one"
    elif rendered is not None:
        how = "applies it" if rendered else "applies none"
        yield f"  chat_template: {_text(rendered)}  # by its log, the deployment {how} to plain prompts"
    else:
        has = "has a" if target.chat_template else "has no"
        yield f"  chat_template: {_text(target.chat_template)}  # the target's tokenizer {has} chat template"
    for line in sample.lines() if sample else ("the target's tokenizer is not on this machine: nothing was tokenised",):
        yield f"  # {line}"
    yield ""
    yield "generate:"
    lookahead = GenerateConfig().lookahead
    yield f"  max_new_tokens: {lengths.new}  # prompt + completion + {lookahead} tokens of lookahead fit the context"


def _sampling(target: Model, log: LogColumns) -> Iterator[str]:
    """The settings that the rows of a log state. What they leave open is from the target's generation config, because
    servers use it; else temperature 1."""
    saved = _server_defaults(target)
    deployed = resolve([StatedSettings(FILE, saved), *of_log(log.stated)])
    yield "# The settings of your deployment. Figures and decisions are valid for these settings."
    if log.sampling:
        yield from log.sampling_lines()
    for line in deployed.notes:
        yield f"# {line}"
    yield f"sampling:{f'  # from {FILE}' if FILE in deployed.sources.values() else ''}"
    for key, value in asdict(deployed.sampling).items():
        yield f"  {key}: {_text(value)}"
    if "repetition_penalty" in saved:
        yield f"  # The file also sets repetition_penalty {_text(saved['repetition_penalty'])}, which cannot be expressed here."
        yield "  # Start the server without the file (vLLM: --generation-config vllm), and set pair.generation_config to ignore."


def _server_defaults(target: Model) -> dict[str, Any]:
    """The defaults of the target's generation config; empty for a model that is not on this machine."""
    return sampling_defaults(target.directory) if target.directory else {}


def _training(prompts: Prompts, is_served: bool, head: KindName | None) -> Iterator[str]:
    train = prompts.rows * Splits().train
    steps = int(min(3000, max(200, _EPOCHS * train // _BATCH)))
    every = max(20, steps // 10)
    yield "distill:"
    epochs = steps * _BATCH / max(train, 1.0)
    times = f"{epochs:.2g}" if epochs < 10 else f"{epochs:,.0f}"
    about = f"about {times} epochs of {train:,.0f} train prompts; the aim is {_EPOCHS}, in 200 to 3,000 steps"
    yield f"  max_steps: {steps}  # {about}"
    yield f"  batch: {_BATCH}  # sequences; with less memory use `accumulation` and a smaller batch"
    yield "  learning_rate: auto  # short trainings on dev prompts find it, with a tenth of these steps at most"
    scores = (
        "the servers score the train prompts too, one request each"
        if is_served
        else "the target scores the train prompts too"
    )
    yield f"  {'# ' if is_served else ''}prompt_weight: 0.5  # {scores}"
    if head is not None and (unrolled := KINDS[head].unrolled):
        yield f"  unrolled_steps: {unrolled}  # places of a block that are trained, each from the one before"
    yield f"  evaluate_every: {every}"
    yield f"  save_every: {every}"


def _text(value: Any) -> str:
    """A scalar as YAML. JSON is YAML and quotes what needs quotes; a comment may hold it too, for it has no line break."""
    plain = isinstance(value, str) and re.fullmatch(r"[A-Za-z/~][\w./~-]*", value) and value.lower() not in _WORDS
    return value if plain else json.dumps(value, ensure_ascii=not str(value).isprintable())


_OF_HEADS: Mapping[KindName, str] = {
    EAGLE3.name: "a decoder layer on three of the target's hidden states, one pass a token",
    MEDUSA.name: "a small network for each of 5 places, greedy; evaluate.gamma is at most 5",
}

_WORDS: Sequence[str] = ("y", "n", "yes", "no", "on", "off", "true", "false", "null", "~")
