"""`understudy canary` on the real vLLM while it speculates: other target weights, another draft and other traffic are provoked
and told apart, each several times on other prompts."""

import dataclasses
import json
import os
import random
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from numpy.typing import NDArray

from pipeline.canary.choices import CanaryDraft, Emission
from pipeline.canary.diagnosis import CountersVerdict
from pipeline.canary.examined import ExaminedRun, examined_slice
from pipeline.canary.run import Question, ask_engines, drafts_on, judge, question
from pipeline.canary.schema import CanaryResult, Verdict
from pipeline.config.root import Config
from pipeline.config.stored import run_config
from pipeline.config.watch import WatchConfig
from pipeline.engines.counts import Counts
from pipeline.progress import Progress
from pipeline.store.artifacts import Store
from pipeline.store.runs import find_built, read_runs
from pipeline.watch.own_requests import OwnRequests
from pipeline.watch.reading import EngineReader
from tests.conformance.engines import Engine
from tests.conformance.exported import export_champion
from tests.conformance.served_vllm import ServedVllm
from tests.conformance.servers import Server
from tests.integration.in_process import call

TIMES = 20  # that each case is provoked, on other prompts
_PROMPTS = 8  # of a canary
_TRAFFIC = 32  # prompts of production
_MARGIN = 0.02  # that acceptance of other traffic lies below at least, as watch.margin
_RIGHT: tuple[Verdict, Verdict, Verdict] = ("as_examined", "as_examined", "as_examined")


@dataclasses.dataclass(frozen=True)
class Site:
    """A copy of CONFORMANCE_STORE, whose champion is asked for."""

    root: Path
    config: dict[str, Any]
    pair: Path
    draft: Path  # the champion
    gamma: int
    prompts: list[NDArray[np.int32]]  # of the examination; those that the champion is worst at are last
    python: Path

    @property
    def store(self) -> Store:
        return Store(self.root / "store")

    def watched(self, url: str, **more: Any) -> Path:
        """The config with the engine at `url`."""
        path = self.root / "watched.yaml"
        watch = {"endpoints": [url], "engine": "vllm", "canary": {"prompts": _PROMPTS}} | more
        path.write_text(yaml.safe_dump(self.config | {"watch": watch}))
        return path

    def serving(self, target: Path, draft: Path, *arguments: str, gamma: int | None = None) -> Server:
        """vLLM with this target, speculating with this draft, by default as many tokens as were examined."""
        settings = {"method": "draft_model", "model": str(draft), "num_speculative_tokens": gamma or self.gamma}
        more = ("--speculative-config", json.dumps(settings), *arguments)
        return Server(self.python, target, more, self.root / f"{target.name}-{draft.name}.log")


COUNTED = ("--per-request-spec-decode-metrics", "summary")


@pytest.fixture(scope="module")
def site(vllm: Engine, tmp_path_factory: pytest.TempPathFactory) -> Site:
    root = tmp_path_factory.mktemp("canary")
    shutil.copytree(os.environ.get("CONFORMANCE_STORE", ".understudy"), root / "store", symlinks=True)
    store = Store(root / "store")
    record = next(one for one in reversed(read_runs(store)) if one.promotion.get("version"))
    config = run_config(record).model_dump(mode="json")
    pair = find_built(store, record, "pair").path
    asked = question(Config.model_validate(config | {"watch": _WATCHED}), store)
    draft = asked.examined.draft
    every = examined_slice(draft, 10_000, 10_000).completions
    texts = [Emission(item.prompt, item.tokens, item.domain) for item in every]
    drafted = CanaryDraft(draft, Progress()).on(texts, 1)
    order = sorted(range(len(every)), key=lambda number: -drafted[number].is_argmax.mean())
    prompts = [every[number].prompt for number in order]
    return Site(root, config, pair, draft.directory, asked.lengths.values[-1], prompts, vllm.interpreter)


_WATCHED = {"endpoints": ["http://127.0.0.1:1"], "engine": "vllm"}


def _questions(site: Site, url: str, seed: int) -> Iterator[Question]:
    """The question of the command, of TIMES different sets of prompts."""
    watch = WatchConfig.model_validate({"endpoints": [url], "engine": "vllm"})
    asked = question(Config.model_validate(site.config).model_copy(update={"watch": watch}), site.store)
    every = examined_slice(asked.examined.draft, 10_000, watch.canary.max_tokens)
    for number in range(TIMES):
        yield dataclasses.replace(asked, examined=_some(every, random.Random(1000 * seed + number)))


def _some(every: ExaminedRun, rng: random.Random) -> ExaminedRun:
    chosen = rng.sample(range(len(every.completions)), min(_PROMPTS, len(every.completions)))
    known = rng.sample(every.known, min(_PROMPTS, len(every.known)))
    return dataclasses.replace(every, completions=[every.completions[one] for one in chosen], known=known)


def _verdicts(site: Site, url: str, seed: int, fallen: bool) -> list[tuple[Verdict, Verdict, Verdict]]:
    """What each canary says of target, traffic and draft."""
    found = list[CanaryResult]()
    draft = None
    for asked in _questions(site, url, seed):
        answers = ask_engines(asked, Progress())
        draft = draft or CanaryDraft(asked.examined.draft, Progress())
        found.append(judge(asked, answers, drafts_on(asked, answers, draft), CountersVerdict(fallen)))
    said = [(one.target.verdict, one.traffic.verdict, one.draft.verdict) for one in found]
    print(f"seed {seed}, fallen {fallen}: {Counter(said)}")
    print(f"  target: {found[0].target.why}\n  traffic: {found[0].traffic.why}\n  draft: {found[0].draft.why}")
    return said


def _command(site: Site, url: str) -> tuple[int, str]:
    code, out, err = call(
        ["canary", str(site.watched(url)), "--store", str(site.store.root)], site.root, dict(os.environ)
    )
    print(out, err)
    return code, out + err


def test_the_right_pair_and_other_traffic(site: Site) -> None:
    """Nothing changed; then production's prompts do, counters fall, and the canary says so: it fell with no other reason."""
    with site.serving(site.pair / "target", site.draft, *COUNTED) as server:
        assert 0 == _command(site, server.url)[0]
        assert [_RIGHT] * TIMES == _verdicts(site, server.url, seed=1, fallen=False)
        fallen = [_falls(site, server.url, seed) for seed in range(TIMES)]
        assert [True] * TIMES == fallen
        expected: tuple[Verdict, ...] = ("as_examined", "changed", "as_examined")
        assert [expected] * TIMES == _verdicts(site, server.url, seed=2, fallen=True)


def test_other_weights_of_the_target(site: Site) -> None:
    """The draft is as examined all the same: it is judged by what the engine emits."""
    with site.serving(site.pair / "target_before", site.draft, *COUNTED) as server:
        assert 3 == _command(site, server.url)[0]
        expected: tuple[Verdict, ...] = ("changed", "inconclusive", "as_examined")
        assert [expected] * TIMES == _verdicts(site, server.url, seed=3, fallen=True)


def test_another_draft_than_declared(site: Site) -> None:
    """The target is as examined."""
    with site.serving(site.pair / "target", site.pair / "draft", *COUNTED) as server:
        assert 3 == _command(site, server.url)[0]
        expected: tuple[Verdict, ...] = ("as_examined", "inconclusive", "not_as_examined")
        assert [expected] * TIMES == _verdicts(site, server.url, seed=4, fallen=True)


def test_another_draft_length_than_exported(site: Site) -> None:
    """The weights are the champion's, and `verify` says what the engine drafts and what its export has."""
    exported = export_champion("vllm", site.root / "export")
    with site.serving(site.pair / "target", site.draft, *COUNTED, gamma=exported.gamma + 1) as server:
        config = site.watched(server.url, expected=str(exported.directory))
        arguments = ["champion", "verify", str(config), "--store", str(site.store.root), "--wait", "0"]
        ended, out, err = call(arguments, site.root, dict(os.environ))
        print(out, err)
    said = (
        f"the engine drafts {exported.gamma + 1} tokens at a time, and its export has {exported.gamma}; at that length"
    )
    assert (3, True) == (ended, f"{said} its counts are those of the examined draft" in " ".join(out.split()))


def test_without_counts_by_request(site: Site) -> None:
    """It says what to switch on; the counters of an idle engine do instead, for the right draft and for another one."""
    for draft, code in ((site.draft, 0), (site.pair / "draft", 3)):
        with site.serving(site.pair / "target", draft) as server:
            ended, said = _command(site, server.url)
            assert (1, True) == (ended, COUNTED[0] in said)
            idle = site.watched(server.url)
            idle.write_text(idle.read_text().replace("canary:", "canary:\n    idle: true"))
            arguments = ["canary", str(idle), "--store", str(site.store.root)]
            ended, out, err = call(arguments, site.root, dict(os.environ))
            print(out, err)
            assert code == ended


def _falls(site: Site, url: str, seed: int) -> bool:
    """Whether counters fall where production's prompts become those that the draft is worst at: the last third."""
    every = [prompt.tolist() for prompt in site.prompts]
    usual = random.Random(seed).sample(every, _TRAFFIC)
    other = random.Random(seed).sample(every[-len(every) // 3 :], _TRAFFIC)
    limit = site.config["generate"]["max_new_tokens"]
    rates = [_rate(site, url, prompts, limit) for prompts in (usual, other)]
    print(f"acceptance of examination prompts {rates[0]:.3f}, of other ones {rates[1]:.3f}")
    return rates[1] < rates[0] - _MARGIN


def _rate(site: Site, url: str, prompts: Sequence[Sequence[int]], limit: int) -> float:
    """The examined acceptance rate that the engine counts for these prompts."""
    own = OwnRequests(site.store, "nobody")
    reader = EngineReader(WatchConfig.model_validate({"endpoints": [url], "engine": "vllm"}), "vllm", own)
    reader.read(time.time())
    ServedVllm(url, "target").complete(prompts, limit, at_once=4)
    time.sleep(0.1)
    observation, _ = reader.read(time.time())
    counts: Counts | None = observation.counts
    assert counts is not None, observation.problems
    assert counts.examined_acceptance_rate is not None
    return counts.examined_acceptance_rate
