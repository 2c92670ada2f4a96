"""What is uploaded to MLflow, and that a failure there never ends a run."""

import json
import math
import shlex
import socket
from collections.abc import Callable
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from pipeline.commands.champion import history, rollback
from pipeline.commands.store import sync
from pipeline.errors import UnderstudyError, UsageError
from pipeline.judgement.schema import CANDIDATE, brief
from pipeline.progress import Progress
from pipeline.registry.history import acting_person
from pipeline.registry.mlflow_client import Location, client_for, metrics, tracking_location
from pipeline.registry.registry import registry_for
from pipeline.registry.tracking import COMPACT, Tracker, ui_link
from pipeline.store.artifacts import Store
from pipeline.store.processes import sign_life
from pipeline.store.runs import JobEntry, RunRecord, Uploaded, load_run, run_directory
from tests.decisions import TRAINING, make_decision
from tests.fakes import counted
from tests.integration.mlflow_fixtures import Quiet, config_of, make_draft, mlflow_template, promote, store
from tests.integration.test_registry import roll_back
from tests.profiles import make_profile

__all__ = ["mlflow_template", "store"]


def build(store: Store, stage: str, key: str, figures: dict[str, float], **files: str) -> None:
    """A committed artifact with these figures and files; in names `__` stands for a dot."""
    work = store.open_work(stage, key, resumable=False)
    for name, text in files.items():
        (work / name.replace("__", ".")).write_text(text)
    manifest = {"stage": stage, "key": key, "figures": figures, "provides": {}, "environment": {"git": "abc123"}}
    store.commit(work, manifest)


def record_of(store: Store, **jobs: str) -> RunRecord:
    record = RunRecord(
        id="run-1", name="loop", created="2026-11-20T00:00:00Z", config=config_of().model_dump(mode="json"), outside={}
    )
    for stage, state in jobs.items():
        record.jobs[stage] = JobEntry(stage=stage, key=f"{stage}0", state=state, seconds=1.5)
    record.save(store)
    return record


def runs_of(location: Location) -> list[Any]:
    client = client_for(location)
    return list(client.search_runs([experiment.experiment_id for experiment in client.search_experiments()]))


def only_run(location: Location) -> Any:
    (run,) = runs_of(location)
    return run


def artifacts_of(location: Location, run_id: str, folder: str = "") -> list[str]:
    return sorted(item.path for item in client_for(location).list_artifacts(run_id, folder))


def test_figures_that_are_not_finite_are_not_uploaded() -> None:
    """MLflow refuses a whole batch for one NaN."""
    assert ["gain"] == [item.key for item in metrics({"gain": 0.1, "broken": math.nan, "endless": math.inf}, 0)]


def test_run_is_uploaded_whole(store: Store) -> None:
    """One run with verdict, settings, decision, figures, datasets and the small files of its jobs."""
    decision = make_decision(-5.0)
    build(store, "corpus", "corpus0", {"prompts": 12})
    build(store, "distill", "distill0", {}, training__json=json.dumps(TRAINING))
    build(store, "gate", "gate0", {}, decision__json=json.dumps(asdict(decision)), other__json="{}")
    record = record_of(store, corpus="skipped", distill="done", gate="done")
    record.state, record.decision, record.ended = "refused", brief(decision), "2026-11-20T00:12:00Z"
    page = run_directory(store, record.id) / "review.html"
    page.write_text("<p>page</p>")
    tracker = Tracker(config_of(), store, Quiet())
    assert tracker.sync(record)
    run = only_run(tracker.location)
    client = client_for(tracker.location)
    assert ("✗ refused run-1", "FINISHED") == (run.info.run_name, run.info.status)
    assert 12 * 60 * 1000 == run.info.end_time - run.info.start_time
    assert "refused" == run.data.tags["verdict"]
    assert "128" not in run.data.params.values()  # a default
    assert ("reference", "5") == (run.data.params["target"], run.data.params["draft_length"])
    assert decision.drafts[CANDIDATE].acceptance_rate.value == run.data.metrics["acceptance_rate"]
    assert 0.0 == run.data.metrics["rules/min_gain"]
    assert list(range(1, 13)) == sorted(
        metric.step for metric in client.get_metric_history(run.info.run_id, "tokens_per_target_call_by_gamma")
    )
    assert [0, 8] == [
        metric.step for metric in client.get_metric_history(run.info.run_id, "training/dev_acceptance_rate")
    ]
    assert ["corpus0"] == [item.dataset.digest for item in run.inputs.dataset_inputs]
    assert "config.yaml decision.json manifests review.html training" == " ".join(
        artifacts_of(tracker.location, run.info.run_id)
    )
    page.write_text("<p>page of a promoted draft</p>")
    assert tracker.sync(record)
    assert page.read_text() == Path(client.download_artifacts(run.info.run_id, "review.html")).read_text()


def test_what_is_too_large_for_mlflow_is_said_and_its_figures_are_there(
    store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file above the limit is named in a line and a tag; of an examination the figures are uploaded without the rows."""
    monkeypatch.setattr("pipeline.registry.tracking._SMALL_BYTES", 20_000)
    profile = json.loads(json.dumps(asdict(make_profile([counted("p1", 50.0), counted("p2", 51.0)]))))
    acceptance = profile | {"prompts": {"deployed": [{"id": "x" * 30_000}]}}
    build(store, "evaluate", "evaluate0", {}, acceptance__json=json.dumps(acceptance))
    build(
        store, "distill", "distill0", {}, training__json=json.dumps([]), learning_curve__json=json.dumps(["x" * 30_000])
    )
    record = record_of(store, evaluate="done", distill="done")
    tracker = Tracker(config_of(), store, Progress(False))
    assert tracker.sync(record)
    run, client = only_run(tracker.location), client_for(tracker.location)
    figures = Path(client.download_artifacts(run.info.run_id, f"examinations/{COMPACT}"))
    said = capsys.readouterr().err

    assert profile == json.loads(figures.read_text())
    assert ["examinations/acceptance.figures.json"] == artifacts_of(tracker.location, run.info.run_id, "examinations")
    assert ["training/training.json"] == artifacts_of(tracker.location, run.info.run_id, "training")
    assert (
        "artifacts/evaluate-evaluate0/acceptance.json; artifacts/distill-distill0/learning_curve.json"
        == run.data.tags["understudy.not_uploaded"]
    )
    assert 2 == said.count(" is not uploaded to MLflow: 0.0 MB, and at most 0.02 MB a file are\n")


def test_description_opens_with_the_decision(store: Store) -> None:
    """The page folds it after six lines, so the verdict, its reasons and the figures come first, and the page is linked."""
    decision = make_decision(-5.0, domain="a|b<i>")
    build(store, "gate", "gate0", {}, decision__json=json.dumps(asdict(decision)))
    record = record_of(store, gate="done")
    tracker = Tracker(config_of(), store, Quiet())
    assert tracker.sync(record)
    run = only_run(tracker.location)
    note = run.data.tags["mlflow.note.content"].splitlines()
    assert [
        "**Refused**",
        "",
        "- Candidate (unquantized) compared with the base draft (there was no champion)",
    ] == note[:3]
    assert note[3].startswith("- min_gain (fail): gain in acceptance rate over the base draft: -4.0")
    assert any(line.startswith("- acceptance rate 0.480, base draft 0.520: -4.0") for line in note[4:6])
    assert f"runs/{run.info.run_id}/artifacts/review.html)" in "".join(note)
    assert "a\\|b&lt;i>" in "".join(note)


def test_the_list_says_who_ran_what_against_which_draft(store: Store) -> None:
    """User and source are tags that only MLflow's fluent interface sets by itself."""
    build(store, "gate", "gate0", {}, decision__json=json.dumps(asdict(make_decision())))
    tracker = Tracker(config_of(), store, Quiet())
    assert tracker.sync(record_of(store, gate="done"))
    run = only_run(tracker.location)
    found = [run.data.tags[name] for name in ("compared_with", "mlflow.user", "mlflow.source.name")]
    assert ["the base draft", acting_person(), f"understudy {version('understudy')}"] == found


def test_shared_view_is_published_once(store: Store) -> None:
    """The link names a view of the list whose columns are verdict, acceptance and gain."""
    record, tracker = record_of(store), Tracker(config_of(), store, Quiet())
    assert tracker.sync(record)
    experiment = client_for(tracker.location).get_experiment(record.mlflow.experiment_id)
    view = json.loads(experiment.tags["mlflow.sharedViewState.understudy"])
    columns = view["selectedColumns"]
    assert "tags.`verdict`" == columns[0]
    assert {
        "metrics.`speedup`",
        "params.`target`",
        "tags.`compared_with`",
    } <= set(columns)
    assert [] == [name for name in columns if name.startswith("attributes.")]  # MLflow shows them before any figure
    link = ui_link(record, store)
    assert link is not None
    assert link.endswith(f"#/experiments/{record.mlflow.experiment_id}/runs?viewStateShareKey=understudy")


def test_sync_again_sends_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record that is already uploaded causes no write."""
    build(store, "corpus", "corpus0", {"prompts": 12})
    record = record_of(store, corpus="done")
    tracker = Tracker(config_of(), store, Quiet())
    assert tracker.sync(record)
    for name in ("log_batch", "create_run", "set_terminated", "update_run", "log_artifact", "log_text", "log_inputs"):
        monkeypatch.setattr(client_for(tracker.location), name, None)
    assert tracker.sync(record)
    assert Tracker(config_of(), store, Quiet()).sync(record)


@pytest.mark.parametrize(
    ("state", "expected"),
    [("finished", "FINISHED"), ("failed", "FAILED"), ("interrupted", "KILLED"), ("running", "RUNNING")],
)
def test_state_of_the_run_is_the_status(store: Store, state: str, expected: str) -> None:
    """MLflow shows how a run ended, also after it was resumed."""
    record, tracker = record_of(store), Tracker(config_of(), store, Quiet())
    record.state = "failed"
    tracker.sync(record)
    record.state = state
    assert tracker.sync(record)
    assert only_run(tracker.location).info.status == expected


def test_killed_between_upload_and_record_makes_no_second_run(store: Store) -> None:
    """Runs in MLflow that the record does not know are found again."""
    build(store, "corpus", "corpus0", {"prompts": 12})
    record = record_of(store, corpus="done")
    assert Tracker(config_of(), store, Quiet()).sync(record)
    record.mlflow = None
    assert Tracker(config_of(), store, Quiet()).sync(record)
    assert only_run(Tracker(config_of(), store, Quiet()).location).info.run_id == record.mlflow.run_id


def test_run_deleted_in_mlflow_is_created_anew(store: Store) -> None:
    """Deleting a run in MLflow does not break its next upload."""
    build(store, "corpus", "corpus0", {"prompts": 12})
    record, tracker = record_of(store, corpus="done"), Tracker(config_of(), store, Quiet())
    tracker.sync(record)
    client_for(tracker.location).delete_run(record.mlflow.run_id)
    record.state = "finished"
    assert tracker.sync(record)
    assert only_run(tracker.location).info.status == "FINISHED"


def test_promotion_continues_the_run_of_the_registry(store: Store, tmp_path: Path) -> None:
    """The registered draft belongs to the run, whichever of registry and tracking came first."""
    draft = make_draft(tmp_path / "draft")
    champion = promote(registry_for(config_of(), store), draft, metrics={"acceptance_rate": 0.5})
    record, tracker = record_of(store, promote="done"), Tracker(config_of(), store, Quiet())
    record.jobs["promote"] = replace(record.jobs["promote"], figures={"change": 1.0}, notes={"result": "promoted"})
    record.state = "finished"
    (run_directory(store, "run-1") / "promote").mkdir()
    (run_directory(store, "run-1") / "promote" / "card.md").write_text("---\nlicense: mit\n---\n\n# Card")
    assert tracker.sync(record)
    run = only_run(tracker.location)
    assert (champion.mlflow_run, "✓ promoted run-1") == (run.info.run_id, run.info.run_name)
    assert 0.5 == run.data.metrics["acceptance_rate"]
    card = client_for(tracker.location).download_artifacts(run.info.run_id, "card.md", str(tmp_path))
    assert "# Card" == Path(card).read_text()


def test_tracking_that_is_down_costs_one_warning(store: Store) -> None:
    """The run continues, one line says where the figures are, and a later upload is complete."""
    build(store, "corpus", "corpus0", {"prompts": 12})
    record, said = record_of(store, corpus="done"), Quiet()
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        uri = f"http://127.0.0.1:{unused.getsockname()[1]}"
        down = Tracker(config_of(tracking={"uri": uri}), store, said)
        assert not down.sync(record)
        assert not down.sync(record)
    where = run_directory(store, "run-1")
    assert said.lines == [
        f"warning: tracking at {uri} does not answer; figures are in {where}; `understudy store sync` uploads them later"
    ]
    assert record.mlflow is None
    assert Tracker(config_of(), store, Quiet()).sync(record)
    saved = load_run(store, "run-1")
    assert saved is not None
    assert saved.mlflow.synced == {"corpus": "done corpus0"}


def test_damaged_artifact_is_tracked_without_figures(store: Store) -> None:
    """A damaged artifact does not stop the upload of the others."""
    build(store, "corpus", "corpus0", {"prompts": 12}, extra__json="{}")
    (store.directory("corpus", "corpus0") / "extra.json").unlink()
    record, said = record_of(store, corpus="done"), Quiet()
    assert Tracker(config_of(), store, said).sync(record)
    assert len(said.lines) == 1
    assert "extra.json is missing" in said.lines[0]


def test_defects_of_ours_are_not_swallowed(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only errors of MLflow become warnings."""
    monkeypatch.setattr("pipeline.registry.tracking.note", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        Tracker(config_of(), store, Quiet()).sync(record_of(store))


def command(function: Callable[..., None], *arguments: str) -> Any:
    app = typer.Typer()
    app.command()(function)
    return CliRunner().invoke(app, list(arguments))


def test_sync_command_uploads_ended_runs(store: Store) -> None:
    """Ended runs are uploaded; a run that is still running is uploaded only if named; a killed one is closed."""
    ended, going, killed = record_of(store), record_of(store), record_of(store)
    ended.state, going.id, killed.id = "finished", "run-2", "run-3"
    ended.save(store)
    going.save(store)
    sign_life(run_directory(store, "run-2"))
    assert Tracker(config_of(), store, Quiet()).sync(killed)
    result = command(sync, "--store", str(store.root))
    assert result.exit_code == 0
    assert "mlflow ui --backend-store-uri sqlite:////" in result.stdout
    assert "run-2: still running" in result.output
    closed = load_run(store, "run-3")
    assert closed is not None
    assert closed.mlflow is not None
    seen = client_for(tracking_location(config_of(), store)).get_run(closed.mlflow.run_id)
    assert ("interrupted", "KILLED") == (closed.state, seen.info.status)
    assert command(sync, "run-2", "--store", str(store.root)).exit_code == 0
    saved = load_run(store, "run-2")
    assert saved is not None
    assert saved.mlflow.run_id


def test_sync_command_skips_a_record_that_it_cannot_read(store: Store) -> None:
    """A run of another version is named with its mistake, and the ones after it are uploaded."""
    bad, good = record_of(store), record_of(store)
    bad.id, bad.created, bad.config = "run-0", "2026-11-19T00:00:00Z", {**bad.config, "of_the_future": {}}
    bad.state = good.state = "finished"
    bad.save(store)
    good.save(store)
    result = command(sync, "--store", str(store.root))

    assert result.exit_code == 0
    assert "run run-0: of_the_future = {}: unknown key" in result.output
    assert "run-1: " in result.stdout
    assert "run-0: " not in result.stdout


def test_sync_command_fails_where_nothing_answers(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """`sync` fails if MLflow does not answer."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    record_of(store)
    result = command(sync, "run-1", "--store", str(store.root))
    assert isinstance(result.exception, UnderstudyError)


def test_sync_command_without_runs_is_a_usage_error(store: Store) -> None:
    """An empty store is named."""
    assert isinstance(command(sync, "--store", str(store.root)).exception, UsageError)


def test_rollback_command_says_what_happened(store: Store, tmp_path: Path) -> None:
    """One line names the new champion."""
    draft, config = make_draft(tmp_path / "draft"), _config(tmp_path)
    arguments = (rollback, str(config), "--store", str(store.root))
    assert "nothing to roll back" in str(command(*arguments).exception)
    promote(registry_for(config_of(), store), draft)
    assert "add --yes" in str(command(*arguments).exception)
    result = command(*arguments, "--yes")
    assert result.exit_code == 0
    assert result.stdout.startswith("reference-draft: version 1 was rolled back; there is no champion")


def test_history_command_lists_every_change(store: Store, tmp_path: Path) -> None:
    """Nothing at first; then the promotion and the rollback, numbered, with their times."""
    arguments = (history, str(_config(tmp_path)), "--store", str(store.root))
    nothing = command(*arguments).stdout
    promote(registry_for(config_of(), store), make_draft(tmp_path / "draft"))
    roll_back(registry_for(config_of(), store))
    rows = [line.split() for line in command(*arguments).stdout.replace("│", " ").splitlines()]

    assert "reference-draft: nothing was promoted yet\n" == nothing
    assert [["1", "promote", "none", "->", "1", "run-1"], ["2", "rollback", "1", "->", "none", "-"]] == [
        [row[0], *row[3:]] for row in rows if row[:1] in (["1"], ["2"])
    ]


def _config(tmp_path: Path) -> Path:
    path = tmp_path / "c.yaml"
    path.write_text(
        "name: loop\npair: {target: {source: reference}, draft: {source: reference}}\n"
        "corpus: {sources: [{path: reference}]}\n"
    )
    return path


def test_links(tmp_path: Path) -> None:
    """A server's page, or the command that serves a local file, quoted; nothing before the first upload."""
    store = Store(tmp_path / "a store")
    record = RunRecord(id="r", name="loop", created="", config={}, outside={})
    view = "/#/experiments/3/runs?viewStateShareKey=understudy"
    assert ui_link(record, store) is None
    record.mlflow = Uploaded(uri="http://h:5000", experiment_id="3", run_id="abc")
    assert ui_link(record, store) == f"http://h:5000{view}"
    record.mlflow.uri = None
    link = ui_link(record, store)
    assert link is not None
    command, _, comment = link.partition("  # ")
    program, *rest = shlex.split(command)
    assert "mlflow" == Path(program).name
    assert ["ui", "--backend-store-uri", f"sqlite:///{tmp_path}/a store/mlflow/mlflow.db"] == rest
    assert comment == f"then open http://127.0.0.1:5000{view}"


def test_sync_command_refuses_credentials_in_an_address(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """As every other command does: one error, not a warning for each run."""
    record_of(store, corpus="done").save(store)
    record = load_run(store, "run-1")
    assert record is not None
    record.state = "finished"
    record.save(store)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://user:secret@localhost:1")
    with pytest.raises(UsageError, match="MLFLOW_TRACKING_URI") as found:
        sync(None, store.root)
    assert "secret" not in str(found.value)


def test_a_failure_is_said_in_the_record_and_the_description(store: Store) -> None:
    """The job and its message."""
    record, tracker = record_of(store), Tracker(config_of(), store, Quiet())
    record.state, record.failure = "failed", "corpus: no prompt left"
    assert tracker.sync(record)
    assert "corpus: no prompt left" in only_run(tracker.location).data.tags["mlflow.note.content"]
