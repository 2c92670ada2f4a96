"""`understudy profile`: measure forward times of a pair on this machine."""

from pathlib import Path
from typing import Annotated

import typer

from pipeline.commands.options import DeviceOption, DtypeOption, TrustOption


def profile(
    target: Annotated[str, typer.Option("--target", metavar="T", help="Model directory or org/name@revision.")],
    draft: Annotated[
        str, typer.Option("--draft", metavar="D", help="Model directory or org/name@revision of the draft.")
    ],
    out: Annotated[Path, typer.Option(metavar="F", help="Write the profile to this JSON file.")] = Path("profile.json"),
    batch_sizes: Annotated[str, typer.Option(help="Batch sizes, comma-separated.")] = "1,2,4,8,16,32",
    max_gamma: Annotated[int, typer.Option(min=1, max=16, help="Longest draft length to measure.")] = 8,
    context_lengths: Annotated[
        str, typer.Option(help="Tokens in the KV cache of each request, comma-separated.")
    ] = "128,512",
    prompt_lengths: Annotated[str, typer.Option(help="Prompt lengths for prefill, comma-separated.")] = "32,128,512",
    dtype: DtypeOption = None,
    device: DeviceOption = "auto",
    trust_remote_code: TrustOption = False,
) -> None:
    """Measure forward times of target and draft by batch size, tokens and context length."""
    axes = [
        _numbers(text, option)
        for text, option in (
            (batch_sizes, "--batch-sizes"),
            (context_lengths, "--context-lengths"),
            (prompt_lengths, "--prompt-lengths"),
        )
    ]
    import json

    from pipeline.errors import UsageError
    from pipeline.latency.costs.measure import measure_profile
    from pipeline.models.files import model_digest
    from pipeline.models.named_pair import load_named_pair, locate
    from pipeline.progress import Progress
    from pipeline.report.profile import print_profile

    if not out.parent.is_dir():
        raise UsageError(f"--out {out}: directory {out.parent} does not exist")
    pair = load_named_pair(target, [draft], dtype, device, trust_remote_code)
    (model,) = pair.drafts.values()
    needed = max(*axes[1], *axes[2]) + max_gamma + 1
    if needed > pair.context:
        raise UsageError(
            f"--context-lengths, --prompt-lengths: {needed} tokens are needed, and the pair's context is {pair.context}"
        )
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
        raise UsageError(f"{option} {text}: give whole numbers above 0, comma-separated, such as 1,4,16")
    return found
