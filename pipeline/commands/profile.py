"""`understudy profile`: what forward passes of a pair take on this machine."""

from pathlib import Path
from typing import Annotated

import typer

from pipeline.commands.options import DeviceOption, DtypeOption, TrustOption


def profile(
    target: Annotated[str, typer.DraftOption("--target", metavar="T", help="Model directory or org/name@revision.")],
    draft: Annotated[str, typer.DraftOption("--draft", metavar="D", help="The same, for the draft.")],
    out: Annotated[Path, typer.DraftOption(metavar="F", help="Where the profile is written, as JSON.")] = Path(
        "profile.json"
    ),
    batches: Annotated[
        str, typer.DraftOption(help="Numbers of requests served at once, with commas.")
    ] = "1,2,4,8,16,32",
    max_gamma: Annotated[int, typer.DraftOption(min=1, max=16, help="Draft lengths 1 to this can be weighed.")] = 8,
    contexts: Annotated[str, typer.DraftOption(help="Tokens in the cache of each, with commas.")] = "128,512",
    prompts: Annotated[str, typer.DraftOption(help="Tokens of a prompt to prefill, with commas.")] = "32,128,512",
    dtype: DtypeOption = None,
    device: DeviceOption = "auto",
    trust_remote_code: TrustOption = False,
) -> None:
    """Forward times of a target and its draft over requests served at once, tokens and context."""
    axes = [
        _numbers(text, option)
        for text, option in ((batches, "--batches"), (contexts, "--contexts"), (prompts, "--prompts"))
    ]
    import json

    from pipeline.errors import UsageError
    from pipeline.latency.costs.measure import measure_profile
    from pipeline.models.files import model_digest
    from pipeline.models.named_pair import load_named_pair, locate
    from pipeline.progress import Progress
    from pipeline.report.profile import print_profile

    if not out.parent.is_dir():
        raise UsageError(f"--out {out}: no such directory as {out.parent}")
    pair = load_named_pair(target, [draft], dtype, device, trust_remote_code)
    (model,) = pair.drafts.values()
    needed = max(*axes[1], *axes[2]) + max_gamma + 1
    if needed > pair.context:
        raise UsageError(f"--contexts, --prompts: {needed} tokens are needed, and the pair's context is {pair.context}")
    about = {name: model_digest(locate(source, name)) for name, source in (("target", target), ("draft", draft))}
    found = measure_profile(
        pair.target, model, pair.vocabulary, axes[0], max_gamma, axes[1], axes[2], about, Progress()
    )
    out.write_text(json.dumps(found.json(), indent=1) + "\n")
    print_profile(found, out)


def _numbers(text: str, option: str) -> tuple[int, ...]:
    from pipeline.errors import UsageError

    try:
        found = tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError:
        found = ()
    if not found or found[0] < 1:
        raise UsageError(f"{option} {text}: give whole numbers above 0, with commas, such as 1,4,16")
    return found
