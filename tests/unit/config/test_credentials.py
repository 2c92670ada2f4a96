"""Credentials in the URIs of a config or the environment: recognised wherever they stand, and never shown."""

from pathlib import Path

import pytest

from pipeline.config.credentials import credentials_in, is_sent_in_clear, masked
from pipeline.config.loading import load_config
from pipeline.config.root import Config
from pipeline.errors import UsageError
from pipeline.models.hub import fetch
from pipeline.running.clear_text import clear_text_warnings
from pipeline.store.artifacts import Store
from tests.unit.config.test_config import SMALL

FINE = (
    "",
    "http://host:5000/path",
    "sqlite:////data/a@b/mlflow.db",
    "sqlite:///x.db?timeout=30",
    "postgresql://user@host/db",
    "postgresql://user@host/db?sslmode=require&connect_timeout=5",
    "databricks://profile",
    "file:///data/mlruns",
    "mlruns",
    "/data/a?b=c",
    "unix:///run/vllm.sock",
)
WRONG = (
    "https://SECRET@host",
    "http://u:p/SECRET@host",
    "http://host/?sig=SECRET",
    "http://host/a?X-Amz-Signature=SECRET",
    "http://host/a?SECRET",
    "https://host/#SECRET",
    "https://host/;k=SECRET",
    "postgresql://u:SECRET@host/db",
    "postgresql://u@host/db?sslpassword=SECRET",
    "postgresql://u@host/db?options%5F=SECRET",
    "file://u:SECRET@h/x",
    "sqlite+pysqlcipher://:SECRET@/x.db",
    "sqlite:///x.db?key=SECRET",
    "s3://key:SECRET@bucket/x",
    "u:SECRET@host",
)


def test_which_uris_hold_credentials() -> None:
    """Also in a query or a fragment, whatever its name; a database takes options that are known to be none."""
    assert [] == [uri for uri in FINE if credentials_in(uri)]
    found = {uri: credentials_in(uri) for uri in WRONG}
    assert [] == [uri for uri, said in found.items() if not said or "SECRET" in said]


@pytest.mark.parametrize("uri", [uri for uri in WRONG if "://" in uri])
def test_a_message_shows_no_credentials(uri: str) -> None:
    """A URI in the text of a library's error."""
    text = masked(f"GET {uri} failed: 'http://other/x'")

    assert text.startswith("GET ")
    assert text.endswith("failed: 'http://other/x'")
    assert "SECRET" not in text or ";" in uri


@pytest.mark.parametrize(
    "override",
    [
        "promote.export={engine: vllm, out: 's3://k:SECRET@bucket/x'}",
        "pair.target.source=https://u:SECRET@hub/org/name",
        "corpus.sources=[{path: 'https://host/x.jsonl?sig=SECRET'}]",
        "tracking.uri=https://host/?X-Amz-Signature=SECRET",
        "promote.notice={url: 'https://host/#SECRET'}",
        "generate.server.endpoints=['http://host/?k=SECRET']",
    ],
)
def test_no_key_of_a_config_takes_a_uri_with_credentials(override: str, tmp_path: Path) -> None:
    """One line that names the key, and not the secret."""
    config = tmp_path / "c.yaml"
    key, value = override.split("=", 1)
    if key == "promote.notice":  # --set does not change it
        config.write_text(SMALL + f"promote: {{notice: {value}}}\n")
        override = "seed=1"
    else:
        config.write_text(SMALL)
    with pytest.raises(UsageError) as refused:
        load_config(config, [override])

    assert key.removesuffix(".source") in str(refused.value)
    assert "SECRET" not in str(refused.value)


def test_a_mirror_of_the_hub_takes_no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its address is in every error of the hub's library."""
    monkeypatch.setenv("HF_ENDPOINT", "https://u:SECRET@mirror")
    with pytest.raises(UsageError, match=r"^HF_ENDPOINT: it holds credentials; leave them out and set HF_TOKEN$"):
        fetch("org/name", "main")


@pytest.mark.parametrize(
    ("url", "clear"),
    [
        ("http://host:8000", True),
        ("HTTP://10.0.0.1", True),
        ("http://127.evil.example", True),
        ("http://localhost:8000", False),
        ("http://127.0.0.2/x", False),
        ("http://[::1]:8000", False),
        ("https://host", False),
        ("unix:///run/x.sock", False),
        ("sqlite:///x.db", False),
    ],
)
def test_what_is_sent_in_clear(url: str, clear: bool) -> None:
    """Plain HTTP that leaves this machine."""
    assert clear == is_sent_in_clear(url)


def test_each_token_over_plain_http_is_named_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers, notice, MLflow and hub; nothing where nothing secret is sent."""
    for name in ("MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_URI", "HF_TOKEN", "HF_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    raw = load_config(_small(tmp_path), []).model_dump(mode="json")
    directory = str(tmp_path)
    raw["pair"] = {
        "target": {"source": "server", "tokenizer": directory, "dtype": "bfloat16"},
        "draft": {"source": directory},
    }
    raw["corpus"]["sources"] = [{"path": f"{directory}/x.jsonl"}]
    raw["generate"] |= {"engine": "server", "server": {"endpoints": ["http://a:1", "http://localhost:2", "https://b"]}}
    raw["promote"] |= {"notice": {"url": "http://c/hook"}}
    raw["tracking"] = {"uri": "http://mlflow:5000"}
    store = Store(tmp_path / "store")
    assert [] == clear_text_warnings(Config.model_validate(raw), store)

    raw["generate"]["server"]["key_variable"] = "GATEWAY"
    raw["promote"]["notice"]["key_variable"] = "HOOK"
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "x")
    monkeypatch.setenv("HF_TOKEN", "x")
    monkeypatch.setenv("HF_ENDPOINT", "http://mirror")
    found = clear_text_warnings(Config.model_validate(raw), store)
    assert [
        f"{secret} is sent to {address} over plain HTTP, where others can read it; use https://"
        for secret, address in (
            ("GATEWAY", "http://a:1"),
            ("HOOK", "http://c/hook"),
            ("MLFLOW_TRACKING_TOKEN", "http://mlflow:5000"),
            ("HF_TOKEN", "http://mirror"),
        )
    ] == found


def _small(tmp_path: Path) -> Path:
    path = tmp_path / "c.yaml"
    path.write_text(SMALL)
    return path
