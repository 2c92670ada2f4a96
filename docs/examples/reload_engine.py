#!/usr/bin/env python3
"""Receives the notice that the champion has changed (`promote.notice.program`), and restarts the replicas of the engine, one
after another. Copy and change it; it needs the standard library only.

The notice is JSON on standard input (docs/champion.md). REPLICAS names a JSON file, /etc/understudy/replicas.json by default:

    {"seconds": 900,
     "replicas": [{"drain":   ["gateway-cli", "disable", "gpu1"],
                   "restart": ["ssh", "gpu1", "systemctl", "restart", "vllm"],
                   "health":  "http://gpu1:8000/health",
                   "restore": ["gateway-cli", "enable", "gpu1"]}]}

`drain` takes the replica out of the gateway and returns when its requests have ended. `drain` and `restore` may be left out
where the gateway does this by itself. The service starts `launch.sh` behind the link `champion` of promote.export.out. `seconds`:
how long a replica may take to load; `health` is asked every POLL_SECONDS (1). Keep `promote.notice.timeout_seconds` above the sum
over all replicas.

Exit code 0: every replica serves the champion. 1: one does not, the replicas after it are as before, and the notice is sent again
by `understudy champion settle`. Notices arrive at least once: what was done is kept in the file STATE, and one call at a
time works. Notices of other kinds, such as of a drift, are accepted and restart nothing.
"""

import fcntl
import http.client
import json
import os
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

REPLICAS = Path(os.environ.get("REPLICAS", "/etc/understudy/replicas.json"))
CHANGES = ("promote", "approve", "rollback", "move")  # what `action` says where the champion has changed
STATE = Path(os.environ.get("STATE", "/var/lib/understudy/reloaded.json"))
POLL_SECONDS = float(os.environ.get("POLL_SECONDS", "1"))


def main() -> None:
    try:
        notice = json.load(sys.stdin)
        action = notice.get("action")
    except (ValueError, AttributeError, RecursionError) as error:
        sys.exit(f"standard input is no notice: {error}")
    if action not in CHANGES:
        print("not a change of the champion: nothing to reload")
        return
    STATE.parent.mkdir(parents=True, exist_ok=True)
    with STATE.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two notices at once would drain two replicas
        reload_all(notice)


def reload_all(notice: dict[str, Any]) -> None:
    """Restart every replica, unless an earlier call has done so for this change."""
    done = state()
    # Whether it was seen, not whether it is later: the numbers of a registry that was made anew begin again. `champion verify`
    # sends a notice once more, as `repeated`, where an engine serves other weights.
    this = [notice["change"], notice.get("repeated", ""), (notice["champion"] or {}).get("digest", "")]
    seen = done.get(notice["name"])
    seen = seen if isinstance(seen, list) else []
    if this in seen:
        print(f"change {notice['change']} of {notice['name']}: reloaded before")
        return
    if notice["champion"] is None:
        print(f"{notice['name']}: there is no champion; the engines go on with what they have loaded")
    else:
        replicas, seconds = checked_replicas()
        for replica in replicas:
            reload(replica, seconds)
        print(f"{notice['name']}: {len(replicas)} replicas serve version {notice['champion']['version']}")
    beside = STATE.with_suffix(".new")
    beside.write_text(json.dumps(done | {notice["name"]: [*seen, this][-100:]}))
    beside.replace(STATE)


def checked_replicas() -> tuple[list[dict[str, Any]], float]:
    """The content of REPLICAS. Checked as a whole before anything is drained: a mistake in the second replica would be met when
    the first is at work again and the second is not."""
    try:
        found = json.loads(REPLICAS.read_text())
        replicas, seconds = found["replicas"], float(found.get("seconds", 900))
        if not 0 < seconds < float("inf"):
            raise ValueError(f"seconds is {seconds}, and not a positive number")
        wrong = [one for one in replicas if not is_replica(one)] if isinstance(replicas, list) else [replicas]
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        sys.exit(f"{REPLICAS}: {type(error).__name__}: {error}; nothing was restarted")
    if wrong or not replicas:
        sys.exit(
            f"{REPLICAS}: replicas: {json.dumps(wrong[0])[:200] if wrong else 'there is none'}: `restart`, `drain` and `restore` "
            "are lists of words, `health` is a URL; nothing was restarted"
        )
    return replicas, seconds


def is_replica(one: Any) -> bool:
    if not isinstance(one, dict):
        return False
    commands = [one.get("restart", []), *(one[step] for step in ("drain", "restore") if one.get(step) is not None)]
    lists = all(isinstance(command, list) and command for command in commands)
    words = lists and all(isinstance(word, str) for command in commands for word in command)
    return words and str(one.get("health")).startswith(("http://", "https://"))


def state() -> dict[str, Any]:
    """What was done, by name; nothing where the file is damaged: a restart too many is better than none."""
    try:
        found = json.loads(STATE.read_text())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def reload(replica: dict[str, Any], seconds: float) -> None:
    """Restart one replica. It goes back to the gateway only if it answers."""
    for step in ("drain", "restart"):
        call(replica.get(step))
    ends = time.monotonic() + seconds
    while not is_healthy(replica["health"]):
        if time.monotonic() > ends:
            sys.exit(
                f"{replica['health']}: not healthy {seconds:g} s after its restart; the other replicas were left alone"
            )
        time.sleep(POLL_SECONDS)
    call(replica.get("restore"))


def call(command: list[str] | None) -> None:
    if command is None:
        return
    try:
        subprocess.run(command, check=True, stdout=sys.stderr)
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"{' '.join(command)}: {error}; the other replicas were left alone")


def is_healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except (OSError, ValueError, http.client.HTTPException):  # a name that is no host's, an answer that is not HTTP
        return False


if __name__ == "__main__":
    main()
