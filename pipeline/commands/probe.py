"""`understudy probe`: is this draft any good for my traffic?"""

from pathlib import Path
from typing import Annotated, Literal

import typer

from pipeline.commands.options import DeviceOption, DtypeOption, TrustOption


def probe(
    target: Annotated[str, typer.Option("--target", metavar="T", help="Model directory or org/name@revision.")],
    draft: Annotated[
        list[str], typer.Option("--draft", metavar="D", help="The same, for a draft; give it again for several.")
    ],
    prompts: Annotated[
        Path | None,
        typer.Option(metavar="F", help="JSONL, Parquet or a `datasets` directory: the target completes them."),
    ] = None,
    completions: Annotated[
        Path | None, typer.Option(metavar="DIR", help="A generate artifact instead: nothing is generated.")
    ] = None,
    count: Annotated[int, typer.Option(min=1, help="Prompts to use, at most.")] = 200,
    max_new_tokens: Annotated[int, typer.Option(min=2, help="Length limit of a completion.")] = 128,
    max_gamma: Annotated[int, typer.Option(min=1, max=16, help="Draft lengths 1 to this are examined.")] = 16,
    temperature: Annotated[float, typer.Option(min=0, help="The deployment's; 0 is argmax.")] = 1.0,
    top_k: Annotated[int, typer.Option(min=0, help="0 keeps all tokens.")] = 0,
    top_p: Annotated[float, typer.Option(min=0.0001, max=1, help="1 keeps all tokens.")] = 1.0,
    min_p: Annotated[float, typer.Option(min=0, max=1, help="0 keeps all tokens.")] = 0.0,
    draft_sampling: Annotated[
        Literal["probabilistic", "greedy"], typer.Option(help="How the engine draws draft tokens.")
    ] = "probabilistic",
    convention: Annotated[
        Literal["user", "transformers", "openvino"], typer.Option(help="Whose way of counting target calls.")
    ] = "user",
    cost_ratio: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="A draft pass over a target pass on your hardware, verification taken as free; by default both are "
            "measured here.",
        ),
    ] = None,
    chat: Annotated[
        bool | None, typer.Option("--chat/--no-chat", help="Render plain prompts by the chat template.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="All figures, as JSON.")] = False,
    dtype: DtypeOption = None,
    device: DeviceOption = "auto",
    trust_remote_code: TrustOption = False,
) -> None:
    """Acceptance by domain, best draft length, break-even and a plain verdict for one draft or several."""
    import dataclasses
    import json
    import tempfile

    from pipeline.config.evaluate import EvaluateConfig
    from pipeline.errors import UsageError

    _check(prompts, completions, cost_ratio, temperature)
    from pipeline.examination.probe import check_completions, complete, read_prompts
    from pipeline.examination.probe import probe as examine
    from pipeline.models.named_pair import find_model, load_named_pair
    from pipeline.progress import Progress
    from pipeline.report.probe import print_probe
    from pipeline.speculation.sampling import GREEDY, Sampling

    sampling = Sampling(temperature, top_k, top_p, min_p) if temperature else GREEDY
    if completions is not None:
        check_completions(completions, sampling, find_model(target, "target"))
    pair, progress = load_named_pair(target, draft, dtype, device, trust_remote_code), Progress()
    if chat and not pair.tokenizer.chat_template:
        raise UsageError("--chat: the target's tokenizer has no chat template")
    if max_new_tokens >= pair.context:
        raise UsageError(
            f"--max-new-tokens {max_new_tokens}: the pair's context is {pair.context}; leave room for a prompt"
        )
    settings = EvaluateConfig(
        convention=convention, draft_sampling=draft_sampling, gamma=min(5, max_gamma), max_gamma=max_gamma
    )
    notes: list[str] = []
    with tempfile.TemporaryDirectory() as scratch:
        if prompts is not None:
            chosen, notes = read_prompts(prompts, pair, chat, count, pair.context - max_new_tokens)
            complete(pair, chosen, sampling, max_new_tokens, Path(scratch), progress)
        found = examine(pair, completions or Path(scratch), sampling, settings, cost_ratio, count, progress)
    conditions = {
        "sampling": dataclasses.asdict(sampling),
        "draft_sampling": draft_sampling,
        "convention": convention,
        "confidence": settings.confidence,
        "cost_ratio_given": cost_ratio is not None,
    }
    if as_json:
        print(
            json.dumps(
                {"conditions": conditions, "notes": notes, **dataclasses.asdict(found)}, indent=1, allow_nan=False
            )
        )
    else:
        print_probe(found, conditions, notes)


def _check(prompts: Path | None, completions: Path | None, cost_ratio: float | None, temperature: float) -> None:
    """What can be wrong without loading a model."""
    import math

    from pipeline.errors import UsageError

    if (prompts is None) == (completions is None):
        raise UsageError("give either --prompts, which the target completes, or --completions, a generate artifact")
    if completions is not None and not completions.is_dir():
        raise UsageError(f"--completions {completions}: no such directory")
    if prompts is not None and not prompts.exists():
        raise UsageError(f"--prompts {prompts}: no such file or directory")
    if prompts is not None and prompts.is_file() and prompts.suffix not in (".jsonl", ".parquet"):
        raise UsageError(f"--prompts {prompts}: give a .jsonl or .parquet file, or a `datasets` directory")
    if not math.isfinite(temperature) or not math.isfinite(cost_ratio or 0):
        raise UsageError("--temperature and --cost-ratio must be numbers")
