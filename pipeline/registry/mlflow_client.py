"""Access to MLflow: its location, a quiet import, a health check before the first call, errors in one line.

Does not depend on drafts, champions or runs. Imports mlflow only when it is needed (1 s), and never writes to the current
directory, which is MLflow's default for a database without an artifact location.
"""

import contextlib
import errno
import importlib.util
import json
import logging
import math
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from traceback import walk_tb
from typing import Any

from pipeline.config.credentials import LOGIN, credentials_in, masked
from pipeline.config.root import Config
from pipeline.config.urls import wrong_with
from pipeline.errors import RegistryDown, RegistryUnavailable, UnderstudyError, UsageError
from pipeline.escaping.names import metric_name
from pipeline.registry import sqlite_file
from pipeline.registry.bounded_http import bound_mlflow
from pipeline.registry.relocation import relocate
from pipeline.store.artifacts import Store

PROBE_SECONDS = 4.0
MISSING = "RESOURCE_DOES_NOT_EXIST"
EXISTS = "RESOURCE_ALREADY_EXISTS"
_ADDRESSES = ("MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI")
_ENVIRONMENT = {  # MLflow's own defaults retry for minutes; values set by the user are kept
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    "MLFLOW_HTTP_REQUEST_BACKOFF_JITTER": "0.2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "60",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",  # stdout is for results
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
}
_DATABASES = ("postgresql", "mysql", "mssql", "sqlite")  # that MLflow takes
_TRUST_SECONDS = 10.0  # a server that answered this recently is not checked again
_clients: dict[str, Any] = {}
_answered: dict[str, float] = {}
_MAX_PARAM, _MAX_TAG = 6000, 8000  # limits of MLflow 3 servers
_UNAUTHORIZED = (401, 403)
_BATCH_OF = 90  # params, or tags, of one log_batch; a server takes 100


@dataclass(frozen=True)
class Location:
    """A tracking server or database. `artifacts` is set on new experiments where there is no server to choose it."""

    uri: str
    artifacts: Path | None
    experiment: str
    lock_in: Store

    @property
    def is_server(self) -> bool:
        return self.uri.startswith(("http://", "https://"))

    @property
    def exists(self) -> bool:
        """Whether there is a database file; for anything else than a file, only MLflow can find out."""
        return not self.uri.startswith(sqlite_file.PREFIX) or sqlite_file.path_of(self.uri).is_file()

    @property
    def is_own(self) -> bool:
        """Whether it is the database inside the store, which goes where the store goes."""
        return self.uri == store_database(self.lock_in)


def store_database(store: Store) -> str:
    """The URI of the database inside a store."""
    return sqlite_file.uri_of(store.mlflow / "mlflow.db")


def addresses_with_credentials() -> dict[str, str]:
    """The environment variables with an address of MLflow that holds credentials; by name, what is wrong."""
    credentials = {name: credentials_in(os.environ.get(name, "")) for name in _ADDRESSES}
    return {name: mistake for name, mistake in credentials.items() if mistake}


def tracking_location(config: Config, store: Store) -> Location:
    """`tracking.uri`, else MLFLOW_TRACKING_URI, else a SQLite file inside the store. Reads and writes nothing.

    Raises UsageError where an address in the environment holds credentials.
    """
    for name, mistake in addresses_with_credentials().items():
        raise UsageError(f"{name}: {mistake}")
    uri = config.tracking.uri or os.environ.get("MLFLOW_TRACKING_URI") or store_database(store)
    if uri.startswith(("http:", "https:")) and (wrong := wrong_with(uri)):
        raise UsageError(f"MLFLOW_TRACKING_URI: {wrong}; write https://host:port")
    artifacts: Path | None = store.mlflow / "artifacts"
    if uri.startswith(sqlite_file.PREFIX):
        database = sqlite_file.path_of(uri)
        uri, artifacts = sqlite_file.uri_of(database) + sqlite_file.options_of(uri), database.parent / "artifacts"
    elif uri.startswith(("http://", "https://")):
        uri, artifacts = uri.rstrip("/"), None
    return Location(uri, artifacts, config.tracking.experiment, store)


def missing_driver(uri: str) -> str | None:
    """Why the database at `uri` cannot be asked from this environment, and what to do; None for one that can, and for anything
    else than a database. Contacts nothing."""
    if uri.partition("://")[0].partition("+")[0] not in _DATABASES:
        return None
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import SQLAlchemyError

    try:
        make_url(uri).get_dialect().import_dbapi()
    except ImportError as error:
        return f"its driver, the Python module {error.name}, is not installed here; install it beside understudy"
    except (SQLAlchemyError, ValueError) as error:
        return f"no address of a database ({_first_line(error)}); correct it"
    return None


def client_for(location: Location) -> Any:
    """An MlflowClient whose server has just answered; one per URI and process.

    Raises RegistryUnavailable, within seconds, where nothing answers, or MLflow is not installed; UsageError for a database whose
    driver is not.
    """
    if importlib.util.find_spec("mlflow") is None:  # on machines that only train and examine
        raise RegistryUnavailable(f"MLflow at {location.uri}: mlflow is not installed; pip install mlflow")
    if wrong := missing_driver(location.uri):
        raise UsageError(f"MLflow at {location.uri}: {wrong}")
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    if location.is_server:
        bound_mlflow()
        _probe(location)
    if location.uri not in _clients:
        with answering(location):
            _clients[location.uri] = _open(location)
    return _clients[location.uri]


def _open(location: Location) -> Any:
    from mlflow import MlflowClient

    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.ERROR)
    # It prints a database error with its SQL before raising it; `answering` reports the error in one line.
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)
    if not location.uri.startswith(sqlite_file.PREFIX):
        return MlflowClient(tracking_uri=location.uri, registry_uri=location.uri)
    path = sqlite_file.path_of(location.uri)
    with location.lock_in.lock("mlflow"), sqlite_file.opening(location.uri):
        sqlite_file.make(path, path.parent / "artifacts")
        if location.is_own:
            relocate(path, location.lock_in.root)
        client = MlflowClient(tracking_uri=location.uri, registry_uri=location.uri)
        # Both stores, tracking and registry, open the file at their first use.
        client.get_experiment("0")
        client.search_registered_models(max_results=1)
    return client


def _probe(location: Location) -> None:
    """One request by MLflow's own function: with the credentials, certificates and headers of all others, and no retries."""
    if time.monotonic() - _answered.get(location.uri, -math.inf) < _TRUST_SECONDS:
        return
    from mlflow.utils.credentials import get_default_host_creds
    from mlflow.utils.rest_utils import http_request

    once: dict[str, Any] = {"max_retries": 0, "timeout": PROBE_SECONDS, "raise_on_status": False}
    try:
        answer = http_request(get_default_host_creds(location.uri), "/health", "GET", **once)
    except Exception as error:
        if not is_mlflow_error(error):
            raise
        raise RegistryDown(f"MLflow at {location.uri} does not answer ({_first_line(_root(error))})") from None
    if answer.status_code in (502, 503, 504):
        raise RegistryDown(f"MLflow at {location.uri} does not answer (HTTP {answer.status_code})")
    if answer.status_code in _UNAUTHORIZED:
        raise _unauthorized(location, answer.status_code, answer.text)
    _answered[location.uri] = time.monotonic()


def _unauthorized(location: Location, status: int, said: str) -> RegistryUnavailable:
    if "host header" in said.lower():  # MLflow 3.5 and later
        return RegistryUnavailable(
            f"MLflow at {location.uri} does not serve under this name (HTTP {status}, Invalid Host header); start it with "
            "--allowed-hosts"
        )
    return RegistryUnavailable(f"MLflow at {location.uri} refuses the credentials (HTTP {status}); set {LOGIN}")


def _root(error: BaseException) -> BaseException:
    """The first of a chain of errors: the operating system's, where the connection failed."""
    inner = [error.__cause__, error.__context__, getattr(error, "reason", None), *error.args]
    cause = next((item for item in inner if isinstance(item, BaseException)), None)
    return error if cause is None else _root(cause)


@contextlib.contextmanager
def answering(location: Location) -> Iterator[None]:
    """Turns whatever MLflow raises inside the block into RegistryUnavailable, in one line that names the URI."""
    try:
        yield
    except UnderstudyError:
        raise
    except Exception as error:
        is_known = is_mlflow_error(error)
        if not is_known and not (location.is_server and _is_raised_in_mlflow(error)):
            raise
        _answered.pop(location.uri, None)
        if not is_known:
            raise RegistryUnavailable(
                f"MLflow at {location.uri} failed ({type(error).__name__}: {_first_line(error)}): its client cannot read the "
                "answer"
            ) from error
        status = error.get_http_status_code() if hasattr(error, "get_http_status_code") else 0
        if location.is_server and status in _UNAUTHORIZED:
            raise _unauthorized(location, status, str(error)) from error
        if isinstance(error, OSError) and error.errno in (errno.EROFS, errno.EACCES) and not location.is_server:
            raise RegistryUnavailable(
                f"{error.filename}: {error.strerror}; MLflow's database {location.uri} is opened under a lock and with write "
                "access, also to read: copy the store to a place that can be written, and name it with --store"
            ) from error
        cause = error.__cause__ or error.__context__
        if location.is_server and isinstance(cause, OSError):  # an error of the connection, not a reply of the server
            raise RegistryDown(
                f"MLflow at {location.uri} does not answer any more ({_first_line(_root(cause))})"
            ) from error
        is_page = any(mark in str(error).lower() for mark in ("<html", "<!doctype"))
        hint = (
            "; that is an HTML page: is tracking.uri the address of MLflow itself, with its prefix?" if is_page else ""
        )
        raise RegistryUnavailable(f"MLflow at {location.uri} failed ({_first_line(error)}){hint}") from error


def is_mlflow_error(error: BaseException) -> bool:
    """Whether `error` comes from MLflow, its database layer, its connection or what a server answered."""
    from google.protobuf.json_format import ParseError  # of an answer of other types
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    return isinstance(error, MlflowException | SQLAlchemyError | OSError | ParseError)


def _is_raised_in_mlflow(error: BaseException) -> bool:
    """Whether MLflow's client, and no code of ours, has failed at an answer, such as at an error code that is a list."""
    packages = [frame.f_globals.get("__name__", "").partition(".")[0] for frame, _ in walk_tb(error.__traceback__)]
    return next((one for one in reversed(packages) if one in ("mlflow", "pipeline")), "") == "mlflow"


def error_code(error: BaseException | None) -> str:
    """MLflow's error code, such as RESOURCE_DOES_NOT_EXIST; empty for other errors."""
    return str(getattr(error, "error_code", ""))


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    text = masked(lines[0]) if lines else type(error).__name__  # it may quote a signed address of an artifact
    return text if len(text) <= 200 else text[:197] + "..."


def experiment_id(client: Any, location: Location) -> str:
    """The id of the location's experiment, created if need be. UnderstudyError if it was deleted."""
    from mlflow.exceptions import MlflowException

    experiment = client.get_experiment_by_name(location.experiment)
    if experiment is None:
        try:
            where = location.artifacts.as_uri() if location.artifacts is not None else None
            return str(client.create_experiment(location.experiment, artifact_location=where))
        except MlflowException as error:
            if error_code(error) != EXISTS:
                raise
            experiment = client.get_experiment_by_name(location.experiment)
    if experiment.lifecycle_stage != "active":
        raise UnderstudyError(
            f"MLflow at {location.uri}: experiment '{location.experiment}' was deleted; restore it "
            "or name another with tracking.experiment"
        )
    return str(experiment.experiment_id)


def metrics(figures: Mapping[str, float], now_ms: int, **entity: str) -> list[Any]:
    """Metric entities of the finite figures; NaN and infinity are left out."""
    from mlflow.entities import Metric

    return [
        Metric(metric_name(name), float(value), now_ms, 0, **entity)
        for name, value in figures.items()
        if isinstance(value, int | float) and math.isfinite(value)
    ]


def step_metrics(points: Iterable[tuple[str, float, int]], now_ms: int) -> list[Any]:
    """Metric entities of (name, value, step); NaN and infinity are left out."""
    from mlflow.entities import Metric

    return [Metric(metric_name(name), value, now_ms, step) for name, value, step in points if math.isfinite(value)]


def log_batch(
    client: Any,
    run_id: str,
    figures: list[Any] | None = None,
    params: Mapping[str, str] | None = None,
    tags: Mapping[str, str] | None = None,
) -> None:
    """Log everything in as few requests as possible; values are cut to the server's limits."""
    from mlflow.entities import Param, RunTag

    metric_list = figures or []
    param_list = [Param(metric_name(key), value[:_MAX_PARAM]) for key, value in (params or {}).items()]
    tag_list = [RunTag(metric_name(key), value[:_MAX_TAG]) for key, value in (tags or {}).items()]
    while metric_list or param_list or tag_list:
        room = max(0, _BATCH_OF - len(tag_list))
        client.log_batch(run_id, metrics=metric_list[:800], params=param_list[:room], tags=tag_list[:_BATCH_OF])
        metric_list, param_list, tag_list = metric_list[800:], param_list[room:], tag_list[_BATCH_OF:]


def dataset_input(name: str, digest: str, source: str, context: str) -> Any:
    """A dataset as MLflow shows it; `context` is its use, such as `evaluation`."""
    from mlflow.entities import Dataset, DatasetInput, InputTag

    dataset = Dataset(name=name, digest=digest[:36], source_type="local", source=json.dumps({"uri": source}))
    return DatasetInput(dataset, [InputTag("mlflow.data.context", context)])
