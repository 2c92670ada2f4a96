#!/usr/bin/env python3
"""Send the requests of a log to a server once more, and log them as a gateway does: a row with request, answer and time for each.

    replay_log.py requests.jsonl http://127.0.0.1:8000 log/replayed.jsonl

Rows have the form of docs/logs.md, with chats in `request`. Needs Python 3.11 and the standard library only.
"""

import http.client
import json
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import Any

AT_ONCE, SECONDS = 4, 300.0


def main(log: str, url: str, out: str) -> None:
    with open(log, encoding="utf-8") as rows:
        requests = [json.loads(row)["request"] for row in rows if row.strip()]
    with urllib.request.urlopen(f"{url}/v1/models", timeout=SECONDS) as answer:
        served = {"model": json.load(answer)["data"][0]["id"], "return_token_ids": True}

    def replayed(logged: dict[str, Any]) -> dict[str, Any]:
        request, created = logged | served, time.time()
        sent = urllib.request.Request(
            f"{url}/v1/chat/completions", json.dumps(request).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(sent, timeout=SECONDS) as answer:
            return {"request": request, "response": json.load(answer), "created": created}

    with ThreadPoolExecutor(AT_ONCE) as pool, open(out, "a", encoding="utf-8") as file:
        for row in pool.map(replayed, requests):
            file.write(json.dumps(row) + "\n")
            file.flush()
    print(f"{len(requests)} requests answered; logged in {out}")


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit("usage: replay_log.py LOG URL OUT")
    try:
        main(*sys.argv[1:])
    except OSError as error:  # a file; or no engine at the URL, one that refuses, a request without an answer in time
        why = f"{sys.argv[2]} refused: {error}" if isinstance(error, urllib.error.HTTPError) else error
        sys.exit(f"replay_log.py: {why}; is an engine with the OpenAI API at {sys.argv[2]}, and {sys.argv[1]} a log?")
    except (ValueError, KeyError, TypeError, IndexError, http.client.HTTPException) as error:
        sys.exit(
            f"replay_log.py: {type(error).__name__}: {error}; {sys.argv[1]} has to have a chat in `request` of each row, and "
            f"{sys.argv[2]} the OpenAI API; what was answered is in {sys.argv[3]}"
        )
