"""A timeline from what the parts of a deployment wrote down themselves."""

from datetime import datetime

from tests.service.deployment import NAME, RETRAINING, WATCH, Deployment

STAGES = ("pair", "corpus", "generate", "distill", "quantize", "evaluate", "gate", "promote")
Event = tuple[float, str, str]  # Unix seconds, what, who


def seconds(moment: str) -> float:
    """Unix seconds of ISO 8601."""
    return datetime.fromisoformat(moment.replace("Z", "+00:00")).timestamp()


def events(deployment: Deployment, run: str, began: float) -> list[Event]:
    """Since `began`, with the tasks of this retraining."""
    found = [(time, f"requests become {kind}", "traffic") for time, kind in deployment.traffic.changes]
    found += [
        (time, f"engine started with `{serves}`", "receiver of the notice") for time, serves in deployment.starts()
    ]
    found += _announced(deployment)
    tasks = deployment.tasks(RETRAINING, run)
    ended = {name: seconds(task["end_date"]) for name, task in tasks.items() if task["end_date"]}
    found.append(
        (seconds(tasks["begin"]["start_date"]), "a retraining begins, on the log since the change", RETRAINING)
    )
    for task, what in (
        ("started", "the prompts are there; the cool-down begins"),
        ("distill", "the draft is trained"),
        ("gate", f"`gate`: {tasks['gate']['state']}"),
        ("promote", f"`promote`: {tasks['promote']['state']}; exported, link moved, engine told"),
        (
            "verify",
            f"`verify`: {tasks['verify']['state']}, {deployment.verified().action}: {deployment.verified().why}",
        ),
    ):
        if task in ended:
            found.append((ended[task], what, RETRAINING))
    model = deployment.mlflow.call(f"registered-models/get?name={NAME}")["registered_model"]
    found += [
        (version["creation_timestamp"] / 1000, f"version {version['version']} is registered", "MLflow")
        for version in deployment.mlflow.call("model-versions/search?filter=" + f"name%3D'{model['name']}'")[
            "model_versions"
        ]
    ]
    return sorted(event for event in found if event[0] >= began)


def _announced(deployment: Deployment) -> list[Event]:
    return [
        (seconds(task["end_date"]), "drift announced", WATCH)
        for run in deployment.airflow.runs(WATCH)
        if (task := deployment.tasks(WATCH, run).get("drift")) and task["state"] == "success"
    ]


def table(found: list[Event], began: float) -> str:
    """As Markdown, times since `began`."""
    rows = [f"| {_clock(time - began)} | {what} | {who} |" for time, what, who in found]
    return "\n".join(["| time | what | who |", "|---|---|---|", *rows])


def _clock(passed: float) -> str:
    return f"{int(passed // 60)}:{int(passed % 60):02d}"
