"""How a running engine comes to serve a new draft: a section of the README of an export. What it has of an engine's endpoints
was read in its source, in the version that the table of engine facts names (tests/conformance/test_reload_source.py)."""

from collections.abc import Callable, Mapping, Sequence

from pipeline.engines.facts import ExportEngine
from pipeline.export.plan import ExportPlan

Call = tuple[str, str, str]  # the request, its body, what it does

VLLM_CALLS: Sequence[Call] = (
    ("POST /init_weight_transfer_engine", '{"init_info": {...}}', "once: the workers join the process that sends"),
    ("POST /pause?mode=keep", "", "running requests are frozen; `wait` lets them end first"),
    ("POST /start_draft_weight_update", "", "what follows goes into the draft"),
    (
        "POST /update_weights",
        '{"update_info": {...}}',
        "a chunk of weights, by their names in the checkpoint; repeated",
    ),
    (
        "POST /finish_weight_update",
        '{"weight_version": "7"}',
        "the draft is complete; `GET /weight_info` shows the version",
    ),
    ("POST /resume", "", ""),
)
SGLANG_CALLS: Sequence[Call] = (
    ("POST /begin_weight_update", '{"selector": "draft"}', "opens a session for the draft"),
    (
        "POST /update_weights_from_tensor",
        '{"serialized_named_tensors": [...], "selector": "draft", "weight_version": "7"}',
        "an entry for each tensor-parallel rank: tensors in the form of `MultiprocessingSerializer`, in base64; repeated",
    ),
    ("POST /end_weight_update", "{}", "closes the session"),
)


def reloading(plan: ExportPlan) -> list[str]:
    """Lines of Markdown: the restart of one replica after another, and what the engine offers without a restart."""
    if plan.engine == "transformers":
        return ["Load the new directory in the process that generates, or start it again."]
    return [*_rolling_restart(plan), *_IN_PLACE.get(plan.engine, _nothing_else)(plan)]


def _rolling_restart(plan: ExportPlan) -> list[str]:
    ready = {"sglang": "GET /health_generate"}.get(plan.engine, "GET /health")
    return [
        "Restart one replica after another behind a gateway. It works for every engine, it loads the draft as it was examined, "
        "and a replica that does not start takes no requests:",
        "",
        "1. Take the replica out of the gateway, and wait until its requests have ended.",
        "2. Stop it, and call `launch.sh` of the new version: with `promote.export`, that of the link `champion`.",
        f"3. Wait until `{ready}` answers with 200.",
        "4. Put it back. Go on with the next replica only if this one answers.",
        "",
        "A program for `promote.notice` does this: `docs/examples/reload_engine.py` of Understudy, to copy. Then "
        "`understudy champion verify CONFIG` compares what the engines do with what was examined.",
    ]


def _nothing_else(plan: ExportPlan) -> list[str]:
    return [
        "",
        f"No request is known with which a running {plan.facts.title} ({plan.facts.checked}) replaces its draft alone.",
    ]


def _vllm(plan: ExportPlan) -> list[str]:
    return [
        "",
        "### Without a restart",
        "",
        f"vLLM {plan.facts.checked} takes draft weights while it runs in its development mode only: `VLLM_SERVER_DEV_MODE=1` in "
        'its environment, and `--weight-transfer-config \'{"backend": "nccl"}\'` (or `ipc`; `sparse_nccl`, `sharded_rdt` and '
        "`nccl_m2n` take no draft). Read in its source, not run.",
        "",
        *_table(VLLM_CALLS),
        "",
        "- `--api-key` does not protect these paths. Who reaches them can stop the engine and replace the **target**, so keep "
        "them on a network of their own.",
        "- `/start_weight_update`, and vLLM's own `HTTPVLLMWeightSyncClient` that calls it, loads into the target.",
        "- After an error the draft is loaded in part: restart the replica.",
        "- Draft length and quantization stay those of the start. The new draft must have the shapes of the old one.",
    ]


def _sglang(plan: ExportPlan) -> list[str]:
    return [
        "",
        "### Without a restart",
        "",
        f"SGLang {plan.facts.checked} takes draft weights in a session. The sender runs on the same machine, with the tensors on "
        "its GPUs; `--dp-size` must be 1. Read in its source, not run.",
        "",
        *_table(SGLANG_CALLS),
        "",
        "- **Give `selector` in both requests.** The default is `all`: the draft's weights are loaded into the target too.",
        "- **Never call `/update_weights_from_disk`**, nor `/update_weights_from_ipc`: they have no selector, and load one path "
        "into target and draft.",
        "- `success: false` with `the cache was not flushed` means that the weights are loaded: let the requests end, then call "
        "`/flush_cache`. After any other error restart the replica.",
        "- Set `--admin-api-key`. Without it and `--api-key`, everybody who reaches the port may replace weights.",
    ]


def _table(calls: Sequence[Call]) -> list[str]:
    rows = [f"| `{request}` | {f'`{body}`' if body else ''} | {what} |" for request, body, what in calls]
    return ["| request | body | |", "|---|---|---|", *rows]


_IN_PLACE: Mapping[ExportEngine, Callable[[ExportPlan], list[str]]] = {"vllm": _vllm, "sglang": _sglang}
