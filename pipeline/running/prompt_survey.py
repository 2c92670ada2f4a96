"""Reads the prompt sources before anything is paid: a source without a usable prompt is an error at once, and not after a model
was downloaded or trained. Writes nothing.

It is the corpus stage's own first pass. Where the tokenizer is a local directory, prompts are tokenised too, up to a bound: the
stage does it again for all of them.
"""

import os
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.config.pair import PairConfig
from pipeline.config.root import Config
from pipeline.corpus.answer_forms import UnusableAnswer
from pipeline.corpus.answers import LoggedAnswer
from pipeline.corpus.hub_data import source_files
from pipeline.corpus.rows import ParsedPrompt
from pipeline.corpus.small_domains import DomainCounts
from pipeline.errors import UnderstudyError
from pipeline.progress import Progress
from pipeline.running import certain_refusals

if TYPE_CHECKING:  # these import pyarrow, which takes half a second; with the reference pair nothing is read
    from pipeline.corpus.accepted_rows import AcceptedRow
    from pipeline.corpus.answer_store import StoredAnswer
    from pipeline.corpus.rendering import Renderer
    from pipeline.corpus.row_facts import RowFacts
    from pipeline.corpus.template_names import TemplateNames

_TOKENISED = 5_000  # rows; further ones only as long as none has a usable length
_NOT_TOKENISED = ("", True)
_SAMPLED = 1_000  # rows of a source, whose tokens are counted


def survey_prompts(config: Config, progress: Progress, today: date | None = None) -> dict[str, int]:
    """Different prompts by domain, as the gate counts them: the turns of a conversation are one. Counted up to what surely
    suffices. Near-duplicates are not looked for.

    UsageError for a source that the corpus stage would refuse. Prompts of the reference pair, which is still to be made, are left
    out, and with them all domains: {}.
    """
    sources = enumerate(config.corpus.sources)
    paths = [None if source.is_reference else source_files(number, source) for number, source in sources]
    enough = 2 * certain_refusals.needed(config.gate.min_prompts_per_domain, config.corpus.splits.examination)
    domains = _Domains(enough, config.gate.min_domain_share, config.corpus.min_domain_prompts)
    if any(paths):
        from pipeline.corpus.first_pass import read_sources

        prefix = _Prefix(_local_renderer(config), config.corpus.min_prompt_tokens, config.corpus.prompt_limit)
        read_sources(config.corpus, paths, prefix, domains, Path(os.devnull), _Quiet(progress.terminal), today)
    return {} if None in paths else domains.counts()


def require_prompts(config: Config, progress: Progress, even_if_refused: bool, today: date | None = None) -> None:
    """UsageError for what the config, or the number of prompts, makes certain to fail; a refusal by the gate too, unless
    `even_if_refused`."""
    prompts = survey_prompts(config, progress, today)
    if not even_if_refused:  # otherwise the corpus stage reports it, with exact numbers
        refusals = [*certain_refusals.of_config(config), *certain_refusals.of_prompts(config, prompts)]
        certain_refusals.stop_or_warn(refusals, progress, go_on=False)
        for line in certain_refusals.near(config, prompts):
            progress.warn(line)


def sampled_tokens(config: Config) -> Counter[int]:
    """How often the first prompts of each source have each of the target's tokens; empty where none can be read here, which
    `require_prompts` reports."""
    sources = [source.model_copy(update={"limit": _SAMPLED}) for source in config.corpus.sources]
    corpus = config.corpus.model_copy(update={"sources": tuple(sources), "max_rejected_share": 1.0})
    try:
        renderer = _local_renderer(config)
        paths = [None if given.is_reference else source_files(number, given) for number, given in enumerate(sources)]
        if renderer is not None:
            from pipeline.corpus.accepted_rows import CountedTokens
            from pipeline.corpus.first_pass import read_sources

            counted, quiet = CountedTokens(), _Quiet(terminal=False)
            read_sources(corpus, paths, renderer, counted, Path(os.devnull), quiet, is_sample=True)
            return counted.tokens
    except UnderstudyError:
        pass
    return Counter()


def _local_renderer(config: Config) -> "Renderer | None":
    path = _local_tokenizer(config.pair)
    if path is None:
        return None
    # Imported here because the first import of torch takes seconds, and other pairs do without it.
    from pipeline.corpus.rendering import Renderer
    from pipeline.models.loading import load_tokenizer
    from pipeline.models.shape import find_width
    from pipeline.models.tokenizers import check_columns

    corpus, trusted = config.corpus, config.pair.trust_remote_code
    tokenizer, width = load_tokenizer(path, trusted), find_width(path, trusted)
    if width is not None:
        check_columns(tokenizer, width, f"pair.target: {path}")
    return Renderer(tokenizer, corpus.chat_template, corpus.chat_template_arguments, width)


def _local_tokenizer(pair: PairConfig) -> Path | None:
    """The directory of the target's tokenizer; None for a pair that is on a hub or is still to be made."""
    if pair.is_reference:
        return None
    path = Path(str(pair.target.tokenizer) if pair.target.is_served else pair.target.source)
    return path if path.is_dir() else None


class _Domains:
    """Takes the place of the row buffer: counts conversations by domain, of those with a large enough share of the rows."""

    def __init__(self, most: int, least_share: float, least_of_log: int) -> None:
        self._least_share, self._least_of_log = least_share, least_of_log
        self._rows = Counter[str]()
        self._found = DomainCounts(max(most, least_of_log))

    def add(self, rows: "Sequence[AcceptedRow]") -> None:
        for row in rows:
            prompt = row.prompt
            self._rows[prompt.domain] += 1
            self._found.add(prompt.domain, int(prompt.conversation, 16), prompt.log_mode)

    def counts(self) -> dict[str, int]:
        renamed = self._found.renamed(self._least_of_log)
        least, rows, texts = self._least_share * self._rows.total(), Counter[str](), defaultdict[str, set[int]](set)
        for domain, members in self._found.conversations.items():
            texts[renamed.get(domain, domain)] |= members
            rows[renamed.get(domain, domain)] += self._rows[domain]
        return {domain: len(prompts) for domain, prompts in sorted(texts.items()) if rows[domain] >= least}


class _Prefix:
    """Renders and tokenises the first rows; later ones, or all without a tokenizer, count as prompts of a usable length."""

    def __init__(self, renderer: "Renderer | None", least: int, most: int) -> None:
        self._renderer, self._least, self._most = renderer, least, most
        self._rendered, self._usable = 0, False

    @property
    def names(self) -> "TemplateNames | None":
        return None if self._renderer is None else self._renderer.names

    def check_arguments(self, arguments: Mapping[str, Any], key: str) -> None:
        if self._renderer is not None:
            self._renderer.check_arguments(arguments, key)

    def text(self, prompt: ParsedPrompt) -> tuple[str, bool]:
        if self._renderer is None or (self._rendered >= _TOKENISED and self._usable):
            return _NOT_TOKENISED
        self._rendered += 1
        return self._renderer.text(prompt)

    def token_ids(self, texts: Sequence[tuple[str, bool]]) -> list[list[int]]:
        hashes = [[0] * self._least for _ in texts]
        places = [place for place, text in enumerate(texts) if text is not _NOT_TOKENISED]
        if self._renderer is not None and places:
            for place, ids in zip(places, self._renderer.token_ids([texts[place] for place in places]), strict=True):
                hashes[place] = ids
                self._usable = self._usable or self._least <= len(ids) <= self._most
        return hashes

    def check_ids(self, ids: Sequence[int], facts: "RowFacts") -> None:
        if self._renderer is not None:
            self._renderer.check_ids(ids, facts)

    def bare_ids(self, texts: Sequence[str]) -> list[list[int]]:
        return [[] for _ in texts]

    def answer_ids(self, prompt: ParsedPrompt, ids: Sequence[int], answer: LoggedAnswer) -> "StoredAnswer":
        raise UnusableAnswer("not read yet")


class _Quiet(Progress):
    """A bar, and no lines: the corpus stage names rejected rows."""

    def line(self, text: str) -> None:
        return
