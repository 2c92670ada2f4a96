"""Credentials for MLflow: taken from the environment, refused in a URI, and never written or printed."""

from pathlib import Path

import pytest

from pipeline.errors import RegistryUnavailable, UsageError
from pipeline.registry.mlflow_client import Location, answering, client_for, tracking_location
from pipeline.store.artifacts import Store
from tests.integration.basic_auth import BEARER, LOGIN, PASSWORD, SECRETS, TOKEN, guarded
from tests.integration.conftest import SMOKE, Ended, Place, loop, place, smoke
from tests.integration.mlflow_fixtures import config_of
from tests.standin_metrics import showing

__all__ = ["loop", "place", "smoke"]

WITH_PASSWORD = f"http://night-run:{PASSWORD}@127.0.0.1:1"
REMEDY = "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN"


@pytest.mark.parametrize("login", [LOGIN, BEARER], ids=["password", "token"])
def test_a_server_with_a_login_is_used(login: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first request and the next carry the credentials of the environment."""
    for name, value in login.items():
        monkeypatch.setenv(name, value)
    with guarded() as server:
        client = client_for(tracking_location(config_of(tracking={"uri": server.uri}), Store(tmp_path)))
        with pytest.raises(Exception, match="nothing is here"):
            client.get_registered_model("any")
        assert [200, 404] == server.statuses


def test_wrong_credentials_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that answers 401 is not called unreachable: the error names the variables to set."""
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "night-run")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "wrong")
    with guarded() as server:
        with pytest.raises(RegistryUnavailable) as refused:
            client_for(tracking_location(config_of(tracking={"uri": server.uri}), Store(tmp_path)))
        assert f"MLflow at {server.uri} refuses the credentials (HTTP 401); {REMEDY}" == str(refused.value)


PAGE = b"<!doctype html><html><title>Sign in</title></html>"


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (200, PAGE, "that is an HTML page: is tracking.uri the address of MLflow itself, with its prefix?"),
        (404, PAGE, "that is an HTML page: is tracking.uri"),
        (403, b"Invalid Host header - possible DNS rebinding attack detected", "start it with --allowed-hosts"),
        (403, b"", f"refuses the credentials (HTTP 403); {REMEDY}"),
        (503, b"no healthy upstream", "does not answer (HTTP 503)"),
    ],
)
def test_what_stands_before_a_server_is_told(status: int, body: bytes, said: str, tmp_path: Path) -> None:
    """A login page, a prefix that is missing, MLflow's check of names: each is one line that says what to do."""

    def ask(location: Location) -> None:
        client = client_for(location)
        with answering(location):
            client.get_registered_model("any")

    with showing(lambda path, asked: (status, {}, body)) as uri, pytest.raises(RegistryUnavailable) as refused:
        ask(tracking_location(config_of(tracking={"uri": uri}), Store(tmp_path)))
    assert said in str(refused.value)
    assert 1 == len(str(refused.value).splitlines())


@pytest.mark.parametrize("name", ["MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI"])
def test_an_address_of_the_environment_with_a_password_is_refused(name: str, place: Place) -> None:
    """One line, exit code 2, before anything is written; `doctor` says the same."""
    ended = [
        place.understudy("run", SMOKE, **{name: WITH_PASSWORD}),
        place.understudy("run", SMOKE, "--dry-run", **{name: WITH_PASSWORD}),
        place.understudy("champion", "history", SMOKE, **{name: WITH_PASSWORD}),
    ]
    doctor = place.understudy("doctor", **{name: WITH_PASSWORD})
    wanted = f"{name}: it holds credentials; leave them out and {REMEDY} in the environment"
    assert [(2, wanted)] * 3 == [(one.code, one.complaint) for one in ended]
    assert (1, True) == (doctor.code, REMEDY in doctor.out)
    assert not place.store.exists()
    assert [] == _found([*ended, doctor], place)


def test_a_config_with_a_password_is_refused(place: Place, tmp_path: Path) -> None:
    """In the file and by --set, also where the key or the YAML is wrong: the value is never shown."""
    config = tmp_path / "c.yaml"
    text = SMOKE.read_text()
    ended = [place.understudy("run", SMOKE, "--set", f"tracking.uri={WITH_PASSWORD}")]
    for wrong in (
        f"tracking: {{uri: '{WITH_PASSWORD}'}}",
        f"tracking: {{url: '{WITH_PASSWORD}'}}",
        f"tracking: {{password: {PASSWORD}}}",
        f"tracking: {{uri: ['{WITH_PASSWORD}']}}",
        f"tracking: '{WITH_PASSWORD}'",
        f"tracking: {{uri: '{WITH_PASSWORD}'",
    ):
        config.write_text(f"{text}\n{wrong}\n")
        ended.append(place.understudy("run", config))
    for wrong in (f"tracking.uri {WITH_PASSWORD}", f"name.uri={WITH_PASSWORD}", f"corpus.sources={WITH_PASSWORD}"):
        ended.append(place.understudy("run", SMOKE, "--set", wrong))
    assert [2] * len(ended) == [one.code for one in ended]
    assert (
        f"--set: tracking.uri: it holds credentials; leave them out and {REMEDY} in the environment"
        == ended[0].complaint
    )
    assert [] == _found(ended, place)
    assert not place.store.exists()


def test_no_secret_is_written_or_printed(loop: Place) -> None:
    """Password and token are in no file of the store and in no output of run, show, store sync and doctor."""
    with guarded() as server:
        environment = {**LOGIN, **BEARER, "MLFLOW_TRACKING_URI": server.uri}
        ended = [
            loop.understudy(*arguments, **environment)
            for arguments in (
                ("run", SMOKE, "--run", "guarded"),
                ("show", "guarded"),
                ("store", "sync", "guarded"),
                ("doctor",),
                ("champion", "history", SMOKE),
            )
        ]
        reached = set(server.statuses)
    wrong = loop.understudy("run", SMOKE, "--set", f"tracking.uri={WITH_PASSWORD}", **environment)
    assert {200, 404} == reached
    assert 2 == wrong.code
    assert [] == _found([*ended, wrong], loop)


def _found(ended: list[Ended], place: Place) -> list[str]:
    """Where a secret is: commands by number, files by path."""
    spoken = [f"command {number}" for number, one in enumerate(ended) if any(s in one.out + one.err for s in SECRETS)]
    files = [path for path in place.root.rglob("*") if path.is_file()]
    return spoken + [str(path) for path in files if any(s.encode() in path.read_bytes() for s in SECRETS)]


def test_which_addresses_hold_credentials() -> None:
    """Addresses that hold no secret are accepted, those of any kind that do are not."""
    fine = (
        "http://host:5000/path",
        "sqlite:////data/a@b/mlflow.db",
        "postgresql://user@host/db",
        "databricks://profile",
    )
    wrong = (
        "https://token@host",
        "http://u:p/w@host",
        "postgresql://u:p@host/db",
        f"http://host/?token={TOKEN}",
        "u:p@host",
    )
    for uri in fine:
        assert config_of(tracking={"uri": uri}).tracking.uri == uri
    for uri in wrong:
        with pytest.raises(UsageError, match=r"it (holds|has)"):
            config_of(tracking={"uri": uri})
