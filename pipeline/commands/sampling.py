"""The deployment's sampling and draft length for a command without a config: from its options, and the runs that its drafts
come from."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pipeline.config.root import Config
    from pipeline.registry.named import Draft
    from pipeline.speculation.deployed import StatedSettings


def of_options(
    temperature: float | None, top_k: int | None, top_p: float | None, min_p: float | None
) -> "list[StatedSettings]":
    """What the options set. UsageError for what no config may set either."""
    from pydantic import ValidationError

    from pipeline.config.generate import SamplingConfig
    from pipeline.errors import UsageError
    from pipeline.speculation.deployed import StatedSettings

    all_of_them = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    given = {name: value for name, value in all_of_them.items() if value is not None}
    try:
        SamplingConfig.model_validate(given)
    except ValidationError as error:
        wrong = error.errors()[0]
        option = f"--{str(wrong['loc'][0]).replace('_', '-')}"
        raise UsageError(f"{option} {wrong['input']:g}: {wrong['msg'][:1].lower()}{wrong['msg'][1:]}") from None
    return [StatedSettings(f"--{name.replace('_', '-')}", {name: value}) for name, value in given.items()]


def of_runs(drafts: "Mapping[str, Draft]", options: "list[StatedSettings]") -> "list[StatedSettings]":
    """What the configs of the runs set that trained `drafts`, by name. UsageError where they set different things that the
    `options` do not settle."""
    from pipeline.errors import UsageError
    from pipeline.speculation.deployed import StatedSettings, resolve

    known = {
        name: StatedSettings(f"the config of run {run}", config.sampling.model_dump())
        for name, (run, config) in _configs(drafts, "sampling").items()
    }
    settings = {name: resolve([config, *options]).sampling for name, config in known.items()}
    if len(set(settings.values())) > 1:
        listed = "; ".join(f"{name} at {sampling}" for name, sampling in settings.items())
        raise UsageError(
            f"--draft: these drafts are for deployments with different sampling: {listed}; give --temperature, --top-k, "
            "--top-p and --min-p"
        )
    return list(known.values())[:1]


def length_of(gamma: int | None, drafts: "Mapping[str, Draft]", most: int) -> tuple[int, str]:
    """The draft length of figures at one length, at most `most`, and where it is from: the option, the runs that trained
    `drafts`, by name, or a config's default. UsageError where these runs have different ones and the option is not given."""
    from pipeline.config.evaluate import EvaluateConfig
    from pipeline.errors import UsageError

    if gamma is not None:
        if gamma > most:
            raise UsageError(f"--gamma {gamma}: above --max-gamma {most}; lower it, or raise that")
        return gamma, "--gamma"
    lengths = {run: config.evaluate.gamma for run, config in _configs(drafts, "draft length").values()}
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{length} of run {run}" for run, length in lengths.items())
        raise UsageError(
            f"--draft: the runs of these drafts have different draft lengths (evaluate.gamma): {listed}; give --gamma"
        )
    run, length = next(iter(lengths.items()), ("", EvaluateConfig().gamma))
    if length > most:
        return most, f"--max-gamma; {f'run {run} has' if run else 'the default is'} {length}"
    return length, f"evaluate.gamma of run {run}" if run else "the default of evaluate.gamma; --gamma sets another"


def _configs(drafts: "Mapping[str, Draft]", what: str) -> "dict[str, tuple[str, Config]]":
    """The runs that trained `drafts`, and their configs, where they are known. `what` is read from them."""
    from pipeline.config.stored import run_config
    from pipeline.errors import UnderstudyError
    from pipeline.progress import Progress

    configs: dict[str, tuple[str, Config]] = {}
    for name, draft in drafts.items():
        if (record := draft.trained_by) is None:
            continue
        try:
            configs[name] = record.id, run_config(record)
        except UnderstudyError as error:
            Progress().warn(f"--draft {name}: the {what} of its run is not known: {error}")
    return configs
