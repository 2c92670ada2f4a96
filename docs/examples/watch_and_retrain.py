#!/usr/bin/env python3
"""The loop without Airflow: looks once, and on a drift retrains, reloads and verifies. For a timer of systemd, cron, or a CronJob
of Kubernetes. One of them works on a store at a time: while one retrains, a look ends at once, and `--now` waits.

    watch_and_retrain.py CONFIG --store DIR            look, and retrain on a drift
    watch_and_retrain.py CONFIG --store DIR --now      retrain now, such as once a week

A drift starts one retraining in `--cooldown-hours`: `understudy runs` lists when the last one started, since its id begins with
`drift-`. One that was interrupted is continued; after one that failed, such as for want of rows since the change, another one
starts after `--retry-hours`. It needs Python 3.11 and the standard library only.

Exit code 0: no drift, a drift within the cool-down, or a new champion that was verified. 1: something could not be done. 2: wrong
config. 3: refused, engines that do not serve what was examined, or an acceptance that is too high. The last lines name it. What
needs no action is printed to standard output, so with `>/dev/null` cron mails only the rest; a drift is sent by `watch.notice`.
"""

import argparse
import fcntl
import json
import os
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

STAMP = "%Y%m%dT%H%M%SZ"
DRIFT_RUN = re.compile(r"drift-(?P<since>\d{8}T\d{6}Z)-\d{8}T\d{6}Z")


def main() -> None:
    given = arguments()
    if not locked(given):
        print("another one is at work on this store: it retrains, or looks")
        return
    if given.now:
        retrain(given, [])
    code, said = ask(
        given, "watch", "--once", "--json", "--for-retraining", f"--store={given.store}", "--", given.config
    )
    if code != 3:
        sys.exit(code)
    if said["drift"] == "high":
        print(said["message"], file=sys.stderr)
        sys.exit(3)  # nothing to learn from
    print(said["message"], flush=True)
    run, since = f"drift-{stamp(said['since'])}-{datetime.now(UTC):{STAMP}}", said["since"]
    if last := last_drift_run(given):
        hours = given.retry_hours if last["state"] == "failed" else given.cooldown_hours
        again = datetime.fromisoformat(last["started"]) + timedelta(hours=hours)
        if last["state"] == "interrupted":
            run, since = last["run"], f"{datetime.strptime(last['since'], STAMP):%Y-%m-%dT%H:%M:%SZ}"
        elif datetime.now(UTC) < again:
            print(f"run {last['run']} ({last['state']}) is for this drift; the next one starts after {again:%F %R} UTC")
            return
    retrain(given, [f"--run={run}", f"--set=corpus.since={since}"])


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("config")
    parser.add_argument("--store", required=True)
    parser.add_argument("--now", action="store_true")
    parser.add_argument("--cooldown-hours", type=float, default=72)
    parser.add_argument("--retry-hours", type=float, default=6)
    parser.add_argument("--executable", default="understudy")
    return parser.parse_args()


def locked(given: argparse.Namespace) -> bool:
    """Whether this is the only one at work on the store; with `--now` it waits for that. The lock ends with the process."""
    try:
        place = os.open(os.path.join(given.store, ".loop"), os.O_CREAT | os.O_RDWR, 0o644)
    except OSError as error:
        sys.exit(f"--store {given.store}: {error.strerror}")
    try:
        fcntl.flock(place, fcntl.LOCK_EX if given.now else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def call(given: argparse.Namespace, words: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run([given.executable, *words], text=True, check=False, **options)
    except OSError as error:
        sys.exit(f"--executable {given.executable}: {error.strerror}; name the path of `understudy`")


def retrain(given: argparse.Namespace, options: list[str]) -> None:
    """Ends the process with the exit code of the first step that does not succeed. `run` exports and tells the engines too."""
    for words in (["run", *options], ["champion", "verify"]):
        if code := call(given, [*words, f"--store={given.store}", "--", given.config]).returncode:
            sys.exit(code)
    sys.exit(0)


def last_drift_run(given: argparse.Namespace) -> dict[str, Any] | None:
    """The latest run that a drift started, with the time of the change."""
    code, runs = ask(given, "runs", "--json", f"--store={given.store}")
    if code:
        sys.exit(code)
    found = [
        run | {"since": match["since"]} for run in runs if (match := DRIFT_RUN.fullmatch(run["run"])) and run["started"]
    ]
    return max(found, key=lambda run: str(run["started"]), default=None)


def ask(given: argparse.Namespace, *words: str) -> tuple[int, Any]:
    """The exit code and the JSON of a command. Its last line is not shown where the JSON says the same."""
    ended = call(given, list(words), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    lines = ended.stderr.splitlines(keepends=True)
    sys.stderr.writelines(line for line in lines if ended.returncode != 3 or not line.startswith("understudy: "))
    return ended.returncode, json.loads(ended.stdout) if ended.returncode in (0, 3) else None


def stamp(time: str) -> str:
    return f"{datetime.fromisoformat(time).astimezone(UTC):{STAMP}}"


if __name__ == "__main__":
    main()
