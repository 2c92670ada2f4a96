"""Secrets of the environment and of headers are in no error and in nothing that is printed."""

import base64

import pytest

from pipeline.config.loading import parse_config
from pipeline.errors import UnderstudyError
from pipeline.escaping import secrets
from pipeline.escaping.secrets import without_secrets
from pipeline.progress import Progress, say

LOGIN = base64.b64encode(b"user:c4nary-pa55").decode()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("HTTP 500: c4nary-t0ken", "HTTP 500: [MY_TOKEN]"),
        ("c4nary-t0ken-and-more", "[MY_LONGER_API_KEY]"),
        ("{'Authorization': 'Bearer abc.DEF-123'}", "{'Authorization': 'Bearer [hidden]'}"),
        (f"Authorization: Basic {LOGIN}", "Authorization: Basic [hidden]"),
        ("token hf_abcDEF123", "token [hidden]"),
        ("cannot connect to http://night:pa55@proxy:3128", "cannot connect to http://[http_proxy]@proxy:3128"),
        ("it needs a bearer token", "it needs a bearer token"),
        ("basic measurements of the token distributions", "basic measurements of the token distributions"),
        ("/run/secrets/x is 123456789, false", "/run/secrets/x is 123456789, false"),
    ],
    ids=range(9),  # pytest puts the name of a test into the environment
)
def test_what_is_hidden(text: str, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values of variables whose name says that they are secret, and what follows a scheme; words, paths and numbers stay."""
    for name, value in (
        ("MY_TOKEN", "c4nary-t0ken"),
        ("MY_LONGER_API_KEY", "c4nary-t0ken-and-more"),
        ("http_proxy", "http://night:pa55@proxy:3128"),
        ("SECRET_FILE", "/run/secrets/x"),
        ("MAX_TOKENS", "123456789"),
        ("TOKENIZERS_PARALLELISM", "false"),
    ):
        monkeypatch.setenv(name, value)

    assert shown == without_secrets(text)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DB_PASS", "hunter2hunter2"),
        ("SSH_PASSPHRASE", "open sesame 123"),
        ("MYSQL_PWD", "hunter2hunter2"),
        ("OPENAI_APIKEY", "sk-abcdefgh1"),
        ("AWS_SECRET_ACCESS_KEY", "/K7MDENGbPxRfiCYEXAMPLEKEY"),
        ("MLFLOW_TRACKING_PASSWORD", "12345678"),
        ("SLACK_WEBHOOK", "https://hooks.example/services/T0/xyz"),
        ("ALERT_HOOK_URL", "https://hooks.example/services/T1/xyz"),
        ("SENTRY_DSN", "https://abc123@o1.example/5"),
        ("GITHUB_PAT", "ghp_aaaaaaaaaaaaaaaa"),
    ],
    ids=range(10),
)
def test_names_and_values_that_people_use(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    assert f"HTTP 500: [{name}]" == without_secrets(f"HTTP 500: {value}")


def test_a_path_is_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is what has PASS in its name as part of a word."""
    for name, value in (("OLDPWD", "/srv/models/Qwen3-0.6B"), ("A_KEY", "/etc/tls/key.pem"), ("COMPASS", "north-east")):
        monkeypatch.setenv(name, value)
        assert value == without_secrets(value)


def test_errors_and_lines_hide_secrets(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever a library's exception says."""
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "c4nary-pa55")
    say("c4nary-pa55")
    Progress(False).warn("c4nary-pa55")

    assert "[MLFLOW_TRACKING_PASSWORD]" == str(UnderstudyError("c4nary-pa55"))
    assert ("[MLFLOW_TRACKING_PASSWORD]\n", "warning: [MLFLOW_TRACKING_PASSWORD]\n") == tuple(capsys.readouterr())


def test_a_variable_that_a_config_names_is_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """`key_variable` may have any name."""
    monkeypatch.setenv("GATEWAY", "c4n")
    monkeypatch.setattr(secrets, "_named", set())
    raw = {"name": "x", "pair": {"target": {"source": "reference"}, "draft": {"source": "reference"}}}
    corpus = {"corpus": {"sources": [{"path": "reference"}]}}
    parse_config({**raw, **corpus, "generate": {"server": {"key_variable": "GATEWAY"}}}, "c.yaml")

    assert "said [GATEWAY]" == without_secrets("said c4n")


@pytest.mark.parametrize(
    "form",
    [
        "c4nary/p@ss wörd",
        "c4nary%2Fp%40ss%20w%C3%B6rd",
        r"c4nary/p@ss w\u00f6rd",
        base64.b64encode("c4nary/p@ss wörd".encode()).decode(),
        base64.b64encode("ann:c4nary/p@ss wörd".encode()).decode(),
    ],
    ids=["as it is", "URL", "JSON", "base64", "base64 of a login"],
)
def test_a_secret_is_hidden_as_programs_write_it(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server's page may repeat a login without the word Basic, and an error the URL that it was called by."""
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "c4nary/p@ss wörd")
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "ann")
    assert "it said [MLFLOW_TRACKING_PASSWORD]" == without_secrets(f"it said {form}").rstrip("=")
