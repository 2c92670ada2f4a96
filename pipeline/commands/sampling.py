"""What a command without a config knows of the deployment's sampling: its options, and the runs that its drafts come from."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pipeline.registry.named import Draft
    from pipeline.speculation.deployed import Known


def of_options(temperature: float | None, top_k: int | None, top_p: float | None, min_p: float | None) -> "list[Known]":
    """What the options set. UsageError for what no config may say either."""
    from pydantic import ValidationError

    from pipeline.config.generate import SamplingConfig
    from pipeline.errors import UsageError
    from pipeline.speculation.deployed import Known

    all_of_them = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    given = {name: value for name, value in all_of_them.items() if value is not None}
    try:
        SamplingConfig.model_validate(given)
    except ValidationError as error:
        wrong = error.errors()[0]
        option = f"--{str(wrong['loc'][0]).replace('_', '-')}"
        raise UsageError(f"{option} {wrong['input']:g}: {wrong['msg'][:1].lower()}{wrong['msg'][1:]}") from None
    return [Known(f"--{name.replace('_', '-')}", {name: value}) for name, value in given.items()]


def of_runs(drafts: "Mapping[str, Draft]", options: "list[Known]") -> "list[Known]":
    """What the configs say of the runs that trained `drafts`, by name. UsageError where they say different things that the
    `options` do not settle."""
    from pipeline.config.stored import run_config
    from pipeline.errors import UnderstudyError, UsageError
    from pipeline.progress import Progress
    from pipeline.speculation.deployed import Known, resolve

    found: dict[str, Known] = {}
    for name, draft in drafts.items():
        record = draft.trained_by
        if record is None:
            continue
        try:
            found[name] = Known(f"the config of run {record.id}", run_config(record).sampling.model_dump())
        except UnderstudyError as error:
            Progress().warn(f"--draft {name}: the sampling of its run is not known: {error}")
    settings = {name: resolve([one, *options]).sampling for name, one in found.items()}
    if len(set(settings.values())) > 1:
        listed = "; ".join(f"{name} at {sampling}" for name, sampling in settings.items())
        raise UsageError(
            f"--draft: these drafts are for deployments with different sampling: {listed}; give --temperature, --top-k, "
            "--top-p and --min-p"
        )
    return list(found.values())[:1]
