"""The counters in metrics pages: of real and simulated engines, and what is said of pages that have none."""

import random
import re
from pathlib import Path
from typing import get_args

import pytest

from pipeline.engines.facts import FACTS, WatchedEngine
from pipeline.watch.exposition import NotCounters, Page, counted, read_page
from tests.standin_metrics import CountingEngine

METRICS = Path(__file__).parents[2] / "fixtures" / "metrics"
ENGINES = get_args(WatchedEngine)
REAL = METRICS / "vllm.txt"


def _sums(page: Page) -> dict[str, float]:
    sums: dict[str, float] = {}
    for totals in page.engines.values():
        for series, total in totals.items():
            sums[counted(series)] = sums.get(counted(series), 0.0) + total.value
    return sums


def _refused(text: str, engine: WatchedEngine = "vllm", model: str | None = None) -> str:
    with pytest.raises(NotCounters) as caught:
        read_page(text, engine, model)
    assert 1 == len(str(caught.value).splitlines())
    return str(caught.value)


def test_a_page_of_vllm() -> None:
    """A page of vLLM's CPU build (fixtures/metrics/README.md), read by eye: its counters, and when they began."""
    page = read_page(REAL.read_text(), "vllm")
    assert {"drafts": 160, "draft_tokens": 480, "accepted": 320, "first": 117, "tokens": 480} == _sums(page)
    assert {"0"} == set(page.engines)
    assert pytest.approx(1795634695.2, abs=0.1) == page.engines["0"]["drafts"].created
    assert 0.0 == page.running


@pytest.mark.parametrize("kind", ENGINES)
def test_pages_of_every_engine(kind: WatchedEngine) -> None:
    """As each engine writes them: sums over positions, drafts and first positions where it has them, requests that run."""
    engine = CountingEngine(kind, running=2.0)
    engine.decode(10, (7, 5, 2), requests=2)
    found = _sums(page := read_page(engine.page(), kind))
    assert (10, 26, 2.0) == (found["drafts"], found["tokens"], page.running)
    if kind == "sglang":
        assert {"drafts", "tokens", "requests"} == set(found)
        assert 2 == found["requests"]
    else:
        assert (30, 14, 7) == (found["draft_tokens"], found["accepted"], found["first"])


@pytest.mark.parametrize("kind", ENGINES)
@pytest.mark.parametrize("also", [False, True])
def test_names_as_what_stands_between_writes_them(kind: WatchedEngine, also: bool) -> None:
    """Underscores for colons (OpenTelemetry's collector, SGLang's router), and Ray's prefix; a counter under both names counts
    once."""
    engine = CountingEngine(kind, running=2.0)
    engine.decode(10, (7, 5, 2), requests=2)
    page = read_page(engine.page(), kind)
    for between in (lambda text: text.replace(":", "_"), lambda text: re.sub(r"^(?=[a-z])", "ray_", text, flags=re.M)):
        own = engine.page()
        text = between(own) + (own if also and between(own) != own else "")
        assert page == read_page(text, kind)


@pytest.mark.parametrize(
    ("kind", "text", "said"),
    [
        (
            "tensorrt-llm",
            "trtllm_spec_decode_num_draft_tokens 30\n",
            "the page has trtllm_spec_decode_num_draft_tokens, and not",
        ),
        (
            "llama.cpp",
            "llamacpp:spec_tokens_drafted_total 30\n",
            "the page has llamacpp:spec_tokens_drafted_total, and not",
        ),
        (
            "sglang",
            'sglang:spec_accept_length{tp_rank="0"} 3.1\n',
            "the page has sglang:spec_accept_length, and not",
        ),
        ("vllm", 'vllm:spec_decode_efficiency{model_name="m"} 0.5\n', "and not vllm:spec_decode_num_drafts_total, "),
    ],
)
def test_names_of_another_version_are_shown(kind: WatchedEngine, text: str, said: str) -> None:
    """A gauge of other versions is no counter, and an engine that speculates is not said to run without a draft."""
    assert said in _refused(text, kind)


def test_ranks_and_models() -> None:
    """Data-parallel ranks are engines of their own, with one average; of several models the configured one is read."""
    one, two = CountingEngine("vllm", rank="0", running=4.0), CountingEngine("vllm", rank="1", running=2.0)
    other = CountingEngine("vllm", model="other", running=90.0)
    one.decode(10, (7, 5, 2))
    other.decode(99, (7, 5, 2))
    page = read_page(one.page() + two.page(), "vllm")
    assert ["0", "1"] == sorted(page.engines)
    assert (10, 3.0) == (_sums(page)["drafts"], page.running)
    both = one.page() + other.page()
    assert "it serves several models: other, target; name one in watch.model" == _refused(both)
    assert "it serves no model third (watch.model); it serves other, target" == _refused(both, model="third")
    assert (10, 99) == tuple(_sums(read_page(both, "vllm", model))["drafts"] for model in ("target", "other"))


def test_processes_of_one_rank_state_the_requests_once() -> None:
    """SGLang's tensor-parallel processes may each show the gauge."""
    engine = CountingEngine("sglang", running=4.0)
    engine.decode(10, (7, 5, 2))
    again = engine.page() + 'sglang:num_running_reqs{dp_rank="0",tp_rank="1"} 4.0\n'.replace(
        "{", '{model_name="target",'
    )
    assert 4.0 == read_page(again, "sglang").running


def test_tensorrt_llm_without_counters_by_position() -> None:
    """Draft tokens and accepted ones, and no drafts; with both kinds those by position are read."""
    plain = (
        'trtllm_spec_decode_num_draft_tokens_total{model_name="m"} 30\n'
        'trtllm_spec_decode_num_accepted_tokens_total{model_name="m"} 14\n'
    )
    assert {"draft_tokens": 30, "accepted": 14} == _sums(read_page(plain, "tensorrt-llm"))
    engine = CountingEngine("tensorrt-llm", model="m")
    engine.decode(20, (0, 0, 0))
    assert {"drafts": 20, "draft_tokens": 60, "accepted": 0, "first": 0, "tokens": 21} == _sums(
        read_page(plain + engine.page(), "tensorrt-llm")
    )


@pytest.mark.parametrize("kind", ENGINES)
def test_a_page_without_speculation(kind: WatchedEngine) -> None:
    """The reason says that there may be no draft, and what the engine must be started with."""
    engine = CountingEngine(kind, requests=3)
    reason = _refused("".join(line for line in engine.page().splitlines(keepends=True) if "spec_" not in line), kind)
    assert reason.startswith("no speculative counters: the engine runs without a draft, or has served no request (")
    assert FACTS[kind].counters.needs in reason


def test_what_is_said_of_other_pages() -> None:
    """HTML, JSON, nothing, another engine's page, a page without its end, and some of the counters only."""
    page = CountingEngine("vllm").page()
    assert "an HTML page" in _refused("<!DOCTYPE html><html></html>\n")
    assert "JSON, not with metrics; TensorRT-LLM has them at /prometheus/metrics" in _refused("[]", "tensorrt-llm")
    assert "the page is empty" == _refused(" \n")
    assert "no metrics of SGLang are there, which watch.engine names" in _refused(page, "sglang")
    assert "the page is cut off: its last line does not end" == _refused(page[:-3])
    some = "".join(line for line in page.splitlines(keepends=True) if "draft_tokens" not in line)
    assert "only some counters of vLLM: accepted, drafts; names are known of 0.32.0" == _refused(some)


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-1", "1e300", "9" * 400, "x", ""])
def test_impossible_values(value: str) -> None:
    """A counter that is no number from 0 on is named."""
    line = 'vllm:spec_decode_num_drafts_total{engine="0",model_name="target"} '
    reason = _refused(REAL.read_text().replace(line + "160.0", line + value))
    assert "vllm:spec_decode_num_drafts_total" in reason


def test_a_series_twice_and_endless_lines() -> None:
    """Neither is summed or kept."""
    page = CountingEngine("vllm").page()
    twice = 'vllm:spec_decode_num_drafts_total{engine="0",model_name="target"} 3\n'
    assert "vllm:spec_decode_num_drafts_total{engine=0, model_name=target} appears twice" == _refused(page + twice)
    long = 'vllm:spec_decode_num_drafts_total{engine="' + "x" * 5000 + '"} 3\n'
    many = "".join(f'vllm:spec_decode_num_drafts_total{{engine="{rank}"}} 3\n' for rank in range(5000))
    for text in (long, many):
        assert "more than 4,096 series, or a line of more than 4,096 characters" == _refused(page + text)


def _read_or_refused(text: str, kind: WatchedEngine) -> tuple[Page | None, str | None]:
    try:
        return read_page(text, kind), None
    except NotCounters as error:
        return None, str(error)


def damaged(text: str, rng: random.Random) -> str:
    """A few mutations: characters, pieces and lines that are lost, doubled, moved or replaced."""
    for _ in range(rng.choice((1, 1, 2, 5, 20))):
        at, end = sorted(rng.randrange(len(text) + 1) for _ in range(2))
        end = min(end, at + rng.choice((1, 10, 200, 10**6)))
        piece = rng.choice(
            (
                "",
                text[at:end] * 2,
                "\x00",
                "\n",
                '"',
                "{",
                "}",
                "NaN",
                "-1",
                "1e999",
                "9" * 400,
                "é\ud800",
                "# TYPE x y",
            )
        )
        text = text[:at] + piece + text[end:] or "x"
    return text


@pytest.mark.parametrize("count", [300, pytest.param(10_000, marks=pytest.mark.long)])
def test_damaged_pages_are_read_or_refused_in_one_line(count: int) -> None:
    """Nothing else is raised, and no total is negative."""
    rng = random.Random(37)
    engines = [CountingEngine(kind) for kind in ENGINES]
    for engine in engines:
        engine.decode(1000, (700, 500, 200), requests=10)
    pages = [(engine.page(), engine.kind) for engine in engines] + [(REAL.read_text()[3000:16000], "vllm")]
    read = 0
    for _ in range(count):
        text, kind = rng.choice(pages)
        page, said = _read_or_refused(damaged(text, rng), kind)
        assert said is None or 1 == len(said.splitlines())
        read += page is not None
        assert page is None or all(total.value >= 0 for totals in page.engines.values() for total in totals.values())
    assert 0 < read < count
