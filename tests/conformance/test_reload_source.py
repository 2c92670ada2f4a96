"""The requests that load draft weights into a running engine, against the sources of SGLang and vLLM. They are not sent: both
need a GPU. `make conformance` names the sources."""

import ast
import json
import os
import subprocess
from pathlib import Path

import pytest

from pipeline.export.reload import SGLANG_CALLS, VLLM_CALLS
from tests.conformance.sources import fields_of, source


def _routes(path: Path) -> dict[str, set[str]]:
    """The arguments of the function that answers each `METHOD /path`."""
    found = {}
    for one in ast.walk(ast.parse(path.read_text())):
        for decorator in one.decorator_list if isinstance(one, ast.AsyncFunctionDef) else ():
            match decorator:
                case ast.Call(
                    func=ast.Attribute(attr="get" | "post" as method), args=[ast.Constant(value=str(route)), *_]
                ):
                    assert isinstance(one, ast.AsyncFunctionDef)
                    found[f"{method.upper()} {route}"] = {argument.arg for argument in one.args.args}
    return found


def test_sglang_takes_the_selector_in_both_requests() -> None:
    """The session and the tensors default to all runners; the requests from disk and by IPC have no selector."""
    sglang = source("SGLANG_SOURCE") / "srt"
    routes = _routes(sglang / "entrypoints" / "http_server.py")
    assert [] == [request for request, _, _ in SGLANG_CALLS if request not in routes]
    structs = sglang / "managers" / "io_struct.py"
    for name in ("BeginWeightUpdateReqInput", "UpdateWeightsFromTensorReqInput"):
        selector = fields_of(structs, name)["selector"]
        assert ("Literal['target', 'draft', 'all']", "'all'") == (selector.annotation, selector.default)
    for name in ("UpdateWeightFromDiskReqInput", "UpdateWeightsFromIPCReqInput"):
        assert "selector" not in fields_of(structs, name)
    body = json.loads(SGLANG_CALLS[1][1].replace("[...]", "[]"))
    assert [] == sorted(set(body) - set(fields_of(structs, "UpdateWeightsFromTensorReqInput")))


def test_vllm_has_the_draft_requests_in_its_development_mode() -> None:
    """The routes with their bodies, which backends take a draft, and which paths an API key protects."""
    if "VLLM_PYTHON" not in os.environ:
        pytest.skip("VLLM_PYTHON is not set: it names the Python of vLLM's environment (docs/conformance.md)")
    code = "import importlib.util; print(importlib.util.find_spec('vllm').submodule_search_locations[0])"
    found = subprocess.run([os.environ["VLLM_PYTHON"], "-c", code], check=True, capture_output=True, text=True)
    vllm = Path(found.stdout.strip())
    routes = _routes(vllm / "entrypoints" / "rl" / "online" / "api_router.py")
    for request, body, _ in VLLM_CALLS:
        route, _, query = request.partition("?")
        given = {query.partition("=")[0]} - {""} | set(json.loads(body.replace("{...}", "{}") or "{}"))
        assert given <= routes[route], request
    assert "GET /weight_info" in routes
    launcher = (vllm / "entrypoints" / "launchers" / "api_server" / "routers.py").read_text()
    assert "register_rl_api_routers" in launcher.partition("if envs.VLLM_SERVER_DEV_MODE:")[2]
    guarded = (vllm / "entrypoints" / "serve" / "middleware" / "authenticate.py").read_text()
    assert 'GUARDED_PREFIX = ("/v1", "/v2", "/inference", "/cohere")' in guarded
    refusing = {
        path.stem
        for path in (vllm / "distributed" / "weight_transfer").glob("*_engine.py")
        if "supports_draft_weight_update = False" in path.read_text()
    }
    assert {"m2n_engine", "sharded_rdt_engine", "sparse_nccl_engine"} == refusing
