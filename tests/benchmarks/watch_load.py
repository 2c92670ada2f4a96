"""What reading 50 replicas costs for a simulated day: memory, processor seconds, and whether every count is the right one.

The replicas are one HTTP server in a process of its own. Each answers with a page of vLLM of 53 KB (tests/fixtures/metrics) with
its own counters; 1,000 times one of them is restarted, some are away for hours, and some answer with rubbish. A look every 5
simulated minutes reads them all, and a log that grows and rotates. What the server has shown of each replica since the last look
is the truth, added up by life of a replica and not by what a reader makes of it.
"""

import asyncio
import json
import random
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.benchmarks.figures import ROOT, write
from tests.benchmarks.memory import in_child, mib

REPLICAS, LOOKS, RESETS, SECONDS = 50, 288, 1000, 300
ROWS = 200  # of the log between two looks
_SETTLED = 12  # looks after which memory is measured first: an hour
_LENGTH = 3
_BEGAN = 1.7956e9
_PAGE = ROOT / "tests" / "fixtures" / "metrics" / "vllm_later.txt"
_ROW = ROOT / "tests" / "fixtures" / "logs" / "vllm_speculating.jsonl"
_COUNTS = ("drafts", "draft_tokens", "accepted", "accepted_first", "tokens")


def main() -> None:
    """MiB at the beginning and the end, processor seconds, and the sums that were counted and shown."""
    server = [sys.executable, "-m", "tests.benchmarks.watch_load", "serve", str(LOOKS), str(RESETS)]
    with subprocess.Popen(server, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as serving:
        assert serving.stdout is not None
        found = in_child("watch_load", "read", serving.stdout.readline().strip(), LOOKS)
        serving.communicate()
    write("watch_load", "python -m tests.benchmarks watch_load", found)


class _Replica:
    """A simulated engine. `shown`: the counts of its last page, and in which life."""

    def __init__(self, number: int, template: list[str]) -> None:
        self.random = random.Random(number)
        self.template, self.life, self.counts = template, 0, dict.fromkeys(_COUNTS, 0)
        self.shown: tuple[int, dict[str, int]] | None = None

    def decode(self) -> None:
        """Five minutes of traffic."""
        drafts = self.random.randrange(20, 4000)
        accepted = [0] * _LENGTH
        left = drafts
        for place in range(_LENGTH):
            left = accepted[place] = int(left * self.random.uniform(0.5, 0.9))
        grown = (drafts, drafts * _LENGTH, sum(accepted), accepted[0], drafts + sum(accepted) + drafts // 50)
        self.counts = {name: self.counts[name] + more for name, more in zip(_COUNTS, grown, strict=True)}

    def page(self, truth: dict[str, int]) -> str:
        """Adds what it shows to the truth."""
        if self.shown is not None:
            life, before = self.shown
            for name in _COUNTS:
                truth[name] += self.counts[name] - (before[name] if life == self.life else 0)
        self.shown = (self.life, dict(self.counts))
        began = _BEGAN + 1000.0 * self.life
        return "".join(part.format(began=began, **self.counts) for part in self.template)


def _template() -> list[str]:
    """The page, with fields in place of the counters that are read."""
    fields = {
        "vllm:spec_decode_num_drafts": "drafts",
        "vllm:spec_decode_num_draft_tokens": "draft_tokens",
        "vllm:spec_decode_num_accepted_tokens": "accepted",
        "vllm:spec_decode_num_accepted_tokens_per_pos": "accepted_first",
        "vllm:generation_tokens": "tokens",
    }
    found = []
    for line in _PAGE.read_text().splitlines(keepends=True):
        line = line.replace("{", "{{").replace("}", "}}")
        for name, field in fields.items():
            if re.match(rf'{name}_total{{{{(?!.*position="[1-9])', line):
                line = line[: line.rindex(" ")] + f" {{{field}}}.0\n"
            elif line.startswith(f"{name}_created{{"):
                line = line[: line.rindex(" ")] + " {began}\n"
        found.append(line)
    return found


def _serve(looks: int, resets: int) -> None:
    """Prints its URL, and serves until its input ends."""
    from aiohttp import web

    chance = random.Random(37)
    template = _template()
    replicas = [_Replica(number, template) for number in range(REPLICAS)]
    restarts = chance.sample([(look, number) for look in range(looks) for number in range(REPLICAS)], resets)
    truth, state = dict.fromkeys(_COUNTS, 0), {"look": 0, "faults": 0}

    async def advance(request: web.Request) -> web.Response:
        for number, replica in enumerate(replicas):
            if (state["look"], number) in by_look:
                replica.life, replica.counts = replica.life + 1, dict.fromkeys(_COUNTS, 0)
            replica.decode()
        state["look"] += 1
        return web.Response()

    async def metrics(request: web.Request) -> web.Response:
        number, look = int(request.match_info["number"]), state["look"]
        away = number % 10 == 0 and (look // 72 + number // 10) % 4 == 0  # for six hours, one after the other
        fault = chance.random()
        if away or fault < 0.02:
            state["faults"] += 1
            return web.Response(status=503) if away or fault < 0.01 else web.Response(text="<html>vllm:</html>\n")
        return web.Response(text=replicas[number].page(truth))

    async def told(request: web.Request) -> web.Response:
        return web.json_response({"truth": truth, "faults": state["faults"], "resets": len(by_look)})

    async def serve() -> None:
        application = web.Application()
        application.router.add_get("/{number:[0-9]+}/metrics", metrics)
        application.router.add_get("/advance", advance)
        application.router.add_get("/truth", told)
        runner = web.AppRunner(application, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        print(f"http://127.0.0.1:{runner.addresses[0][1]}", flush=True)
        await asyncio.to_thread(sys.stdin.read)
        await runner.cleanup()

    by_look = set(restarts)
    asyncio.run(serve())


def _read(url: str, looks: int) -> dict[str, Any]:
    """The reader, in this process. Its state goes through JSON at every look, as it is stored."""
    from pydantic import TypeAdapter

    from pipeline.config.watch import WatchConfig
    from pipeline.store.artifacts import Store
    from pipeline.watch.own_requests import OwnRequests
    from pipeline.watch.reading import EngineReader, ReaderState

    form = TypeAdapter(ReaderState)
    row = json.loads(next(line for line in _ROW.read_text().splitlines() if "num_spec_steps" in line))
    sums, rows, problems, at_first = dict.fromkeys(_COUNTS, 0.0), 0.0, 0, 0.0
    with tempfile.TemporaryDirectory() as place:
        log = Path(place) / "requests.jsonl"
        log.write_text("")
        own = OwnRequests(Store(Path(place) / "store"), "draft")
        endpoints = [f"{url}/{number}" for number in range(REPLICAS)]
        settings = WatchConfig.model_validate({"endpoints": endpoints, "timeout_seconds": 60.0, "log": str(log)})
        stored, began = form.dump_json(ReaderState()), 0.0
        for look in range(looks):
            urllib.request.urlopen(f"{url}/advance").read()
            _write_log(log, row, look)
            before = time.process_time()
            observation, state = EngineReader(settings, "vllm", own, form.validate_json(stored)).read(
                _BEGAN + SECONDS * look
            )
            stored = form.dump_json(state)
            began += time.process_time() - before
            problems += len(observation.problems)
            if observation.counts is not None:
                sums = {name: sums[name] + (getattr(observation.counts, name) or 0.0) for name in _COUNTS}
            rows += sum(counts.drafts or 0.0 for counts in observation.by_domain.values())
            at_first = mib("status", "VmRSS") if look + 1 == min(_SETTLED, looks) else at_first
        told = json.loads(urllib.request.urlopen(f"{url}/truth").read())
    drafts = row["response"]["metrics"]["speculative_decoding"]["num_spec_steps"]
    return {
        "mib_after_an_hour": at_first,
        "mib_at_the_end": mib("status", "VmRSS"),
        "cpu_seconds": began,
        "simulated_seconds": looks * SECONDS,
        "state_bytes": len(stored),
        "problems": problems,
        "counted": sums,
        "log_drafts": {"counted": rows, "truth": float(drafts * ROWS * (looks - 1))},
        **told,
    }


def _write_log(log: Path, row: dict[str, Any], look: int) -> None:
    """Appends rows. Every 12 looks the file is rotated, and the one before is deleted; the first look is before any row."""
    if look == 0:
        return
    with log.open("a") as file:
        for number in range(ROWS):
            file.write(json.dumps(row | {"created": _BEGAN + SECONDS * look + number}) + "\n")
    if look % 12 == 0:
        log.rename(log.with_name("requests.jsonl.1"))
        log.write_text("")


def section(figure: dict[str, Any]) -> Iterator[str]:
    """Its section of a page in docs/benchmarks/."""
    hours, share = figure["simulated_seconds"] / 3600, figure["cpu_seconds"] / figure["simulated_seconds"]
    equal = figure["counted"] == figure["truth"] and figure["log_drafts"]["counted"] == figure["log_drafts"]["truth"]
    yield "## Reading replicas in service\n"
    yield (
        f"{REPLICAS} simulated replicas with pages of vLLM (53 KB) and a log, for {hours:.3g} simulated hours at "
        f"{SECONDS // 60} minutes: {figure['resets']:,} restarts, {figure['faults']:,} pages that were missing or rubbish.\n"
    )
    yield "| figure | |"
    yield "|---|---|"
    yield f"| resident MiB after an hour | {figure['mib_after_an_hour']:.0f} |"
    yield f"| at the end | {figure['mib_at_the_end']:.0f} |"
    yield f"| processor seconds | {figure['cpu_seconds']:.0f} ({share:.2%} of one core) |"
    yield f"| size of the state | {figure['state_bytes'] / 1000:.0f} kB |"
    yield f"| drafts counted | {figure['counted']['drafts']:,.0f} |"
    yield f"| sums equal to what the replicas and the log showed | {'yes' if equal else 'no'} |"


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        _serve(int(sys.argv[2]), int(sys.argv[3]))
    elif sys.argv[1] == "read":
        print(json.dumps(_read(sys.argv[2], int(sys.argv[3]))))
