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
by `understudy champion settle`. Notices arrive at least once: the number of the last change is kept in the file that STATE names.
Notices of other kinds, such as of a drift, are accepted and restart nothing.
"""

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

REPLICAS = Path(os.environ.get("REPLICAS", "/etc/understudy/replicas.json"))
CHANGES = ("promote", "approve", "rollback", "move")  # what `action` says where the champion has changed
STATE = Path(os.environ.get("STATE", "/var/lib/understudy/reloaded.json"))
POLL_SECONDS = float(os.environ.get("POLL_SECONDS", "1"))


def main() -> None:
    notice = json.load(sys.stdin)
    if notice.get("action") not in CHANGES:
        print("not a change of the champion: nothing to reload")
        return
    done = json.loads(STATE.read_text()) if STATE.exists() else {}
    # `champion verify` sends a notice once more where an engine serves other weights.
    number = [notice["change"], notice.get("repeated", "")]
    if number <= done.get(notice["name"], [0, ""]):
        print(f"change {notice['change']} of {notice['name']}: reloaded before")
        return
    if notice["champion"] is None:
        print(f"{notice['name']}: there is no champion; the engines go on with what they have loaded")
    else:
        settings = json.loads(REPLICAS.read_text())
        for replica in settings["replicas"]:
            reload(replica, settings.get("seconds", 900))
        print(f"{notice['name']}: {len(settings['replicas'])} replicas serve version {notice['champion']['version']}")
    STATE.parent.mkdir(parents=True, exist_ok=True)
    beside = STATE.with_suffix(".new")
    beside.write_text(json.dumps(done | {notice["name"]: number}))
    beside.replace(STATE)


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
    except (OSError, urllib.error.URLError):
        return False


if __name__ == "__main__":
    main()
