"""`python -m tests.benchmarks transplant`: drafts of the quickstart's target that were pre-trained with other tokenizers and have
been given its own (`pair.draft.vocabulary`), before training and after, beside what else could be trained. Finished runs in the
store stay.
"""

import json
import os
import sysconfig
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml

from tests.benchmarks.answers import missed
from tests.benchmarks.figures import ROOT, write
from tests.benchmarks.runs import built, reference_pair, run_until

STORE = Path(os.environ.get("UNDERSTUDY_BENCH_TRANSPLANT", ROOT / ".understudy-benchmarks-transplant"))
SEEDS, STEPS = (0, 1, 2), (50, 200)
Training = tuple[int, str]  # steps, optimizer
TRAININGS: tuple[Training, ...] = ((50, "muon"), (200, "muon"), (50, "adamw"))
_OPTIMIZERS = {"muon": "Muon", "adamw": "AdamW"}
_RATES = {
    "muon": 0.0312,
    "adamw": 0.004,
}  # of 50 steps, too few for trials: what those of the quickstart's training find
_CONFIG = ROOT / "configs" / "quickstart.yaml"
_TEXT = 1_500_000  # characters that a tokenizer is trained on
_AHEAD, _BEHIND = 0.20, {50: 0.06, 200: 0.02}  # aims
_OWN, _SCRATCH, _LAYERS = "the target's tokenizer", "random weights", "one layer of the target"
_SENTENCEPIECE = "BPE with a dummy prefix and `<0x67>`, 1,500 tokens, single digits"
_BYTE_LEVEL = "byte-level BPE, 2,000 tokens, another split"
_LOSSY = "BPE of NFKC and lower case, 1,500 tokens"
_SPLIT = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_WAYS = ("map", "pieces", "strings")


def main() -> None:
    arms = (_SENTENCEPIECE, _OWN, _SCRATCH, _BYTE_LEVEL, _LAYERS, _LOSSY)
    trained = [
        {"draft": name, "seed": seed, "steps": steps, "optimizer": optimizer, **_trained(name, seed, steps, optimizer)}
        for seed in SEEDS
        for steps, optimizer in TRAININGS
        for name in arms
    ]
    untrained = {name: _untrained(name) for name in (_SENTENCEPIECE, _BYTE_LEVEL, _LOSSY)}
    write("transplant", "python -m tests.benchmarks transplant", {"untrained": untrained, "trained": trained})


@cache
def _pair() -> Path:
    """The pair artifact of the quickstart."""
    return reference_pair(_CONFIG, STORE)


def _trained(name: str, seed: int, steps: int, optimizer: str) -> dict[str, Any]:
    """Acceptance rates at temperature 1 before and after the quickstart's training with so many steps of that optimizer."""
    config = yaml.safe_load(_CONFIG.read_text())
    drafts: dict[str, Callable[[], dict[str, Any]]] = {
        _OWN: lambda: {"source": str(_pretrained(name, seed))},
        _SCRATCH: lambda: {"source": str(_pretrained(name, seed))},
        _LAYERS: lambda: {"source": "target", "layers": 1},
    }
    draft = drafts.get(name, lambda: {"source": str(_pretrained(name, seed)), "vocabulary": "target"})()
    config |= {"name": _name(name, seed, steps, optimizer), "seed": seed, "quantize": {"variants": []}}
    config["pair"] = {"target": {"source": str(_pair() / "target")}, "draft": draft}
    config["corpus"]["sources"] = [{"path": str(_pair() / "prompts.jsonl")}]
    config["evaluate"] |= {"speed": {"turns": 0}, "crosscheck_prompts": 0}
    rate = _RATES[optimizer] if steps < STEPS[-1] else "auto"
    config["distill"] |= {"max_steps": steps, "optimizer": optimizer, "learning_rate": rate}
    if (job := built(STORE, config["name"], "evaluate/candidate")) is None:
        run_until(STORE, config, "evaluate")
        job = built(STORE, config["name"], "evaluate/candidate")
    distilled, base = built(STORE, config["name"], "distill"), built(STORE, config["name"], "evaluate/base")
    return {
        "before": _rate(base),
        "after": _rate(job),
        "prompts": _profile(job).headline.acceptance_rate.prompts,
        "parameters": _profile(job).draft.parameters,
        "learning_rate": distilled.figures.get("learning_rate", rate),
    }


def _profile(artifact: Any) -> Any:
    from pipeline.acceptance.schema import read_profile

    return read_profile(artifact.path)


def _rate(artifact: Any) -> dict[str, float]:
    found = _profile(artifact).headline.acceptance_rate
    return {"value": found.value, "low": found.low, "high": found.high}


def _name(draft: str, seed: int, steps: int, optimizer: str) -> str:
    """The name of a run."""
    return f"{_slug(draft)}-{seed}-{steps}-{optimizer}"


def _slug(name: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in name.lower()).strip("-")[:24]


def _recipe() -> Any:
    from pipeline.config.loading import load_config

    return load_config(_CONFIG, ()).pair.reference


@cache
def _documents() -> list[Any]:
    """What target and base draft were trained on."""
    from pipeline.reference.text import read_text

    text = read_text(Path(sysconfig.get_path("stdlib")), _recipe().text_megabytes)
    return [document for document in text.modules if not document.held_out]


def _pretrained(name: str, seed: int) -> Path:
    """A draft of the base draft's shape and training, with the tokenizer of that name; of random weights, not trained."""
    import torch

    from pipeline.models.saving import save_model
    from pipeline.progress import Progress
    from pipeline.reference import recipe as reference

    directory = STORE / "drafts" / f"{_slug(name)}-{seed}"
    if not (directory / "tokenizer.json").exists():
        recipe, tokenizer = _recipe(), _tokenizer(name)
        recipe = recipe.model_copy(update={"vocabulary": len(tokenizer)})
        model, steps = reference.new_model(recipe.draft, recipe, tokenizer, seed + 1), recipe.draft.steps
        if name != _SCRATCH:
            tokens = reference._tokens(tokenizer, _documents())
            training = reference.ModelTraining(_slug(name), tokens, steps, recipe.draft.learning_rate, seed + 1)
            model = reference.train_model(model, training, recipe, torch.device("cpu"), Progress())
        save_model(model, directory)
        tokenizer.save_pretrained(directory)
    return directory


def _tokenizer(name: str) -> Any:
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    from pipeline.models.loading import load_tokenizer

    if name in (_OWN, _SCRATCH):
        return load_tokenizer(_pair() / "target", False)
    alphabet: dict[str, Any] = {}
    if name == _BYTE_LEVEL:
        names, first, size = ["<|end|>", "</s>"], list[str](), 2000
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(_SPLIT), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
        tokenizer.decoder = decoders.ByteLevel()
        alphabet = {"initial_alphabet": pre_tokenizers.ByteLevel.alphabet()}
    else:
        names, first, size = ["<unk>", "<s>", "</s>"], [f"<0x{byte:02X}>" for byte in range(256)], 1500
        lossy = [normalizers.NFKC(), normalizers.Lowercase()] if name == _LOSSY else []
        tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
        tokenizer.normalizer = normalizers.Sequence(
            [*lossy, normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
        )
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.Split("\u2581", "merged_with_next")]
        )
        tokenizer.decoder = decoders.Sequence(
            [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        )
        alphabet = {"limit_alphabet": 200}
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=[*names, *first], show_progress=False, **alphabet)
    tokenizer.train_from_iterator(_up_to(_TEXT), trainer)
    spec = json.loads(tokenizer.to_str())  # the trainer has made bytes special tokens
    spec["added_tokens"] = [one for one in spec["added_tokens"] if one["content"] in names]
    roles = {"unk_token": "<unk>", "bos_token": "<s>"} if "<unk>" in names else {}
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(spec)), eos_token="</s>", pad_token="</s>", **roles
    )


def _up_to(characters: int) -> Iterator[str]:
    for document in _documents():
        if characters <= 0:
            return
        yield document.text
        characters -= len(document.text)


def _untrained(name: str) -> dict[str, Any]:
    """What three ways of making rows give without training: tokens with equal bytes copied, the others by the map or from
    their pieces; and tokens with equal strings copied, the others the mean row. Of the first seed."""
    import torch

    from pipeline.drafts.shared_tokens import SharedTokens, Vocabularies
    from pipeline.drafts.transplant import transplant
    from pipeline.models.loading import load_model, load_tokenizer
    from pipeline.models.shape import find_width

    class Unknown(Vocabularies):
        def pieces(self, place: int) -> list[int]:
            return []

    directory, device = _pretrained(name, SEEDS[0]), torch.device("cpu")
    target = load_model(_pair() / "target", "float32", device)
    known, own = (load_tokenizer(path, False) for path in (_pair() / "target", directory))
    width, end = target.config.vocab_size, known.eos_token_id
    vocabularies = Vocabularies(known, own, width, find_width(directory, False))
    theirs, ours = known.get_vocab(), own.get_vocab()
    copied = {theirs[token]: ours[token] for token in theirs.keys() & ours.keys()}
    others = tuple(sorted(set(range(width)) - copied.keys() - {end}))
    by_bytes = vocabularies.shared({}, [end])
    by_strings = SharedTokens(copied, {end: (own.eos_token_id,)}, others, (), ())
    ways: dict[str, tuple[Any, ...]] = {
        "map": (vocabularies, by_bytes, width, target.get_input_embeddings().weight.detach()),
        "pieces": (vocabularies, by_bytes, width, "it is not used"),
        "strings": (Unknown(known, own, width, find_width(directory, False)), by_strings, width, "it is not used"),
    }
    found: dict[str, Any] = {"lost": vocabularies.changed_text()}
    for way, arguments in ways.items():
        model = load_model(directory, "float32", device)
        facts, _ = transplant(model, *arguments)
        found[way] = {"facts": facts.as_json(), "acceptance_rate": _examined(model)}
    return found


def _examined(model: Any) -> float:
    """The acceptance rate at temperature 1 on the examination prompts of the first seed's runs."""
    from pipeline.acceptance.examine import acceptance_probabilities
    from pipeline.drafts.plain import PlainDraft
    from pipeline.generation.completion_store import read_completions
    from pipeline.speculation.settings import Sampling

    generated = built(STORE, _name(_OWN, SEEDS[0], *TRAININGS[0]), "generate").path
    items = list(read_completions(generated, {"examination"}, Sampling()))
    draft = PlainDraft(model.eval(), items[0].vocabulary)
    found = acceptance_probabilities(draft, items, Sampling(), Sampling(), 8192)
    examined = [one[1:] for one in found]  # the prefill emits the first
    return float(sum(one.sum() for one in examined) / sum(map(len, examined)))


def section(figure: dict[str, Any]) -> Iterator[str]:
    """Its section of a page in docs/benchmarks/."""
    trained = figure["trained"]
    yield "## Drafts with another tokenizer\n"
    yield (
        "The quickstart's fine-tuned target; drafts of one shape, pre-trained on one text, given the target's tokenizer "
        f"(`pair.draft.vocabulary: target`). Acceptance rates at temperature 1, {trained[0]['prompts']} examination prompts. "
        "Before training, by what the rows of tokens are that the draft does not have; copied are those with equal bytes, in the "
        "last column those with equal strings:\n"
    )
    yield "| draft | copied | map's leave-one-out error | the map | mean of pieces | equal strings, the others the mean row |"
    yield "|---|---|---|---|---|---|"
    for name, found in figure["untrained"].items():
        facts = found["map"]["facts"]
        error = "-" if facts["map_error"] is None else f"{facts['map_error']:.0%}"
        rates = " | ".join(f"{found[way]['acceptance_rate']:.3f}" for way in _WAYS)
        yield f"| {name} | {facts['copied']} | {error} | {rates} |"
    for name, found in figure["untrained"].items():
        if found["lost"]:
            yield f"\n{name} loses of a text: {', '.join(found['lost'])}."
    yield (
        f"\nAfter the quickstart's training, and after {STEPS[0]} of its steps, which are too few for trials of the rate: "
        f"with a rate of {_RATES['muon']} of Muon and of {_RATES['adamw']} of AdamW. In parentheses the difference from the "
        "draft with the target's tokenizer, the mean over the seeds that both have:\n"
    )
    yield "| draft | parameters | before | " + " | ".join(f"{_named(one)} | seeds" for one in TRAININGS) + " |"
    yield "|---|---|---|" + "---|---|" * len(TRAININGS)
    for name in dict.fromkeys(row["draft"] for row in trained):
        own = [row for row in trained if row["draft"] == name]
        before = fmean(row["before"]["value"] for row in own)
        cells = []
        for training in TRAININGS:
            seeds = _by_seed(trained, name, training)
            behind = _behind(trained, name, training)
            cells.append(f"{fmean(seeds.values()):.3f}{behind} | {len(seeds)}" if seeds else "- | 0")
        yield f"| {name} | {own[0]['parameters']:,} | {before:.3f} | {' | '.join(cells)} |"
    yield "\n" + " ".join(_aims(figure))


def _named(training: Training) -> str:
    steps, optimizer = training
    return f"after {steps} steps of {_OPTIMIZERS[optimizer]}"


def _by_seed(trained: list[dict[str, Any]], name: str, training: Training) -> dict[int, float]:
    """Acceptance rates after a training."""
    rows = [row for row in trained if (row["draft"], row["steps"], row["optimizer"]) == (name, *training)]
    return {row["seed"]: row["after"]["value"] for row in rows}


def _behind(trained: list[dict[str, Any]], name: str, training: Training) -> str:
    lead = None if name == _OWN else _lead(trained, _OWN, name, training)
    return "" if lead is None else f" ({-lead:+.3f})"


def _lead(trained: list[dict[str, Any]], first: str, second: str, training: Training) -> float | None:
    """How far the first is ahead of the second, the mean over the seeds that both have; None without one."""
    ahead, behind = (_by_seed(trained, name, training) for name in (first, second))
    leads = [ahead[seed] - behind[seed] for seed in ahead.keys() & behind.keys()]
    return fmean(leads) if leads else None


def _aims(figure: dict[str, Any]) -> Iterator[str]:
    trained, foreign = figure["trained"], (_SENTENCEPIECE, _BYTE_LEVEL)
    rates = [{way: figure["untrained"][name][way]["acceptance_rate"] for way in _WAYS} for name in foreign]
    lead = min(rate["map"] - max(rate["pieces"], rate["strings"]) for rate in rates)
    yield (
        f"Of the first two tokenizers: without training the map is ahead of the other ways by {lead:.3f} or more."
        f"{missed('the map was to be best.', lead <= 0)}"
    )
    for training in TRAININGS:
        behind = _leads(trained, [(_OWN, name) for name in foreign], training)
        ahead = _leads(trained, [(name, _SCRATCH) for name in foreign], training)
        name = _named(training)
        yield (
            f"{name[0].upper()}{name[1:]}: behind the draft with the target's tokenizer by {_joined(behind)} "
            f"(aim: at most {_BEHIND[training[0]]:.2f}), ahead of random weights by {_joined(ahead)}."
            f"{missed(f'at most {_BEHIND[training[0]]:.2f} behind was the aim.', max(behind) > _BEHIND[training[0]])}"
            f"{missed(f'{_AHEAD:.2f} ahead of random weights was the aim.', training[0] == STEPS[0] and min(ahead) < _AHEAD)}"
        )


def _leads(trained: list[dict[str, Any]], pairs: list[tuple[str, str]], training: Training) -> list[float]:
    """Those that were measured."""
    leads = (_lead(trained, *pair, training) for pair in pairs)
    return [lead for lead in leads if lead is not None]


def _joined(leads: list[float]) -> str:
    return " and ".join(f"{lead:.3f}" for lead in leads)
