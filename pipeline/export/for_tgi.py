"""Files with which TGI serves the target with Medusa heads: it is given the heads, and their config.json names the target."""

from pipeline.export.plan import ExportPlan
from pipeline.export.schema import ExpectedCounters
from pipeline.export.shell import launch_script
from pipeline.export.target import needs_code, target_name
from pipeline.registry.named import Draft

WEIGHTS = "medusa_lm_head.safetensors"
_LINK = "target"  # beside launch.sh, for a target in a directory: no path of this machine is in the heads' config
_DTYPES = ("bfloat16", "float16")


def base_model(draft: Draft) -> str:
    """`base_model_name_or_path`: a model of the hub, or the link that launch.sh makes beside itself."""
    return target_name(draft) if draft.config.pair.target.is_hub else _LINK


def files(plan: ExportPlan, expected: ExpectedCounters) -> dict[str, str]:
    """The files by name: the launch script. It runs in its own directory, where the link to the target is."""
    base, dtype = base_model(plan.draft), plan.draft.pair.dtype("target")
    words = ["text-generation-launcher", "--model-id", "./draft"]
    words += ["--speculate", str(plan.lengths.gamma)]
    words += ["--dtype", dtype] if dtype in _DTYPES else []
    words += ["--num-shard", str(plan.tensor_parallel)] if plan.tensor_parallel > 1 else []
    words += ["--trust-remote-code"] if needs_code(plan.draft) else []
    before = list[str]()
    if base == _LINK:  # before the directory is changed, to which a relative path would be taken
        before.append('TARGET="$(cd "$TARGET" && pwd)" || exit 1')
    before.append('cd "$here" || exit 1')
    if base == _LINK:
        before.append(f'[ -d {_LINK} ] && [ ! -L {_LINK} ] || ln -sfn "$TARGET" {_LINK} || exit 1')
    # Beside a local directory with heads TGI downloads no target.
    download = ["text-generation-server", "download-weights", base]
    before.append(" ".join(download) + " || exit 1")
    comment = f"Serves the target with these heads. Read in TGI's source ({plan.facts.checked})."
    if base != _LINK:
        comment += f"\nThe target is {base} at its revision main, as draft/config.json names it."
    script = launch_script(plan.comment(comment), target_name(plan.draft) if base == _LINK else None, words, before)
    return {"launch.sh": script}
