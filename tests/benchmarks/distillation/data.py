"""What the target of a regime said, by the pipeline's own corpus and generate stages, and what an examination finds."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tests.benchmarks.distillation.pair import make_pair
from tests.benchmarks.distillation.place import CONFIG, PLACE, TARGETS
from tests.benchmarks.drafts import examined
from tests.benchmarks.figures import ROOT
from tests.benchmarks.runs import understudy


@dataclass(frozen=True)
class Regime:
    """A target, the base draft, and the completions of one finished generate stage."""

    name: str
    target: Path
    corpus: Path
    completions: Path
    prompts: Path  # the target's distributions over train prompts

    @property
    def draft(self) -> Path:
        return PLACE / "draft"

    @cached_property
    def config(self) -> Any:
        from pipeline.config.loading import load_config

        return load_config(ROOT / CONFIG, _overrides(self.name))

    @cached_property
    def tokenizer(self) -> Any:
        from pipeline.models.loading import load_tokenizer

        return load_tokenizer(self.target)

    @cached_property
    def vocabulary(self) -> int:
        return len(self.tokenizer)

    @cached_property
    def documents(self) -> dict[str, int]:
        """By prompt, what it was cut from."""
        from pipeline.corpus.prompt_store import open_prompts

        return {prompt.id: prompt.cluster for prompt in open_prompts(self.corpus)}

    def load(self, which: Path) -> Any:
        from pipeline.models.devices import choose_device
        from pipeline.models.loading import load_model

        return load_model(which, "float32", choose_device("auto"))

    def read(self, split: str) -> Sequence[Any]:
        from pipeline.generation.completion_store import read_completions
        from pipeline.speculation.settings import Sampling

        return list(read_completions(self.completions, {split}, Sampling()))

    def examine(self, draft: Any) -> list[Any]:
        """Per-prompt counts on the examination split, at temperature 1."""
        return examined(draft, self.read("examination"), self.vocabulary, self.config.evaluate)

    def dev_acceptance(self, draft: Any) -> float:
        from pipeline.drafts.plain import PlainDraft
        from pipeline.examination.examiner import Examiner
        from pipeline.speculation.settings import Sampling

        examiner = Examiner(Sampling(), self.config.evaluate, count_as="user")
        return examiner.summary(PlainDraft(draft, self.vocabulary), self.read("dev")).acceptance


def find_regime(name: str) -> Regime:
    """The regime's completions; the pair is trained and the stages are run where they are not there yet."""
    from pipeline.config.loading import load_config
    from pipeline.store.artifacts import Store
    from pipeline.store.files import content_key
    from pipeline.store.runs import find_built, require_run

    make_pair()
    overrides = _overrides(name)
    settings = [part for override in overrides for part in ("--set", override)]
    store, config = PLACE / "store", load_config(ROOT / CONFIG, overrides)
    run = f"{name}-{content_key(config.model_dump(mode='json'))}"  # a run has one config for good
    understudy("run", CONFIG, *settings, "--until", "generate", "--run", run, "--store", store)
    opened = Store(store)
    record, jobs = require_run(opened, run), ("corpus", "generate", "generate/prompts")
    return Regime(name, PLACE / TARGETS[name], *(find_built(opened, record, job).path for job in jobs))


def _overrides(name: str) -> list[str]:
    return [
        f"pair.target.source={PLACE / TARGETS[name]}",
        f"pair.draft.source={PLACE / 'draft'}",
        f"corpus.sources=[{{path: {PLACE / 'prompts.jsonl'}}}]",
    ]
