"""Whether the champion with which a run will be compared is a draft of the run's target: asked before anything is paid."""

from pathlib import Path

from pipeline.config.root import Config
from pipeline.drafts.head_config import kind_of
from pipeline.errors import BrokenDraft, UsageError
from pipeline.models.files import tokenizer_digest, tokenizer_files
from pipeline.models.places import model_places
from pipeline.models.stored_pair import read_pair
from pipeline.registry.drafts import RegisteredDraft, TargetIdentity
from pipeline.registry.registry import Registry, naming, target_name
from pipeline.registry.target_identity import is_chosen, same_target

_OTHER_NAME = "set promote.target_name to another name for this target"


def require_same_target(config: Config, own: TargetIdentity, registry: Registry) -> None:
    """UsageError where the registered name was not chosen but derived, and drafts of another target have it. `own`: the target of
    the run."""
    holder = registry.holder()
    if holder is None or is_chosen(config) or same_target(own, holder.target):
        return
    held = holder.target.place or holder.target.source
    raise UsageError(
        f"{registry.name}: version {holder.version} is a draft of {held}, and the target of this config is {own.place}: the name "
        f"is only {naming(config)}; set promote.target_name to {target_name(config)} if the target is the same "
        "one, changed or moved, and to another name if it is another target"
    )


def require_profile_of(config: Config, champion: RegisteredDraft) -> None:
    """UsageError where `gate.champion_profile` has step times of another draft than the champion, and of another shape."""
    if (path := config.gate.champion_profile) is None:
        return
    # Imported here because it takes a second, and most runs state no load.
    from pipeline.latency.costs.step_costs import read_step_costs

    step_costs = read_step_costs(Path(path))
    same_shape = "" != champion.shape == step_costs.draft_shape
    if step_costs.draft_digest is None or step_costs.draft_digest == champion.digest or same_shape:
        return
    raise UsageError(
        f"gate.champion_profile: {path} has the step times of another draft than the champion, {champion.name} version "
        f"{champion.version}; measure them again (`understudy profile --draft {champion.name}@{champion.version}`), or leave the "
        "key out"
    )


def require_same_tokenizer(
    config: Config, pair_artifact: Path, registry: Registry, champion: RegisteredDraft, files: Path
) -> None:
    """UsageError where the champion cannot be examined with the pair: found after the pair stage, before a token is generated.
    `files`: where the champion's files go if they are elsewhere. A head has its target's tokenizer, and its examination records
    whether it fits another target."""
    pair = read_pair(pair_artifact, model_places(config.pair))
    own = tokenizer_digest(pair.tokenizer)
    if champion.target.tokenizer == own:
        return
    directory = registry.fetch(champion, files)
    if not tokenizer_files(directory) and kind_of(directory).reads_states:
        return
    if tokenizer_digest(directory) == own:
        return
    from pipeline.drafts.loading import lacking_tokens  # loads torch

    try:
        lacking_tokens(pair, directory, config.pair.trust_remote_code)
    except BrokenDraft as error:
        why = str(error).partition("; choose a draft")[
            0
        ]  # what to do with a draft that is chosen, and a champion is not
        raise UsageError(
            f"{registry.name}: its champion, version {champion.version}, cannot be examined with this pair, so the gate would "
            f"refuse at the end: {why}; {_OTHER_NAME}, or promote.deployment"
        ) from None
