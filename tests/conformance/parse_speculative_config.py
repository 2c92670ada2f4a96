"""A speculative config parsed by vLLM's own classes, run by the interpreter of its environment.

    .venv-engines/bin/python tests/conformance/parse_speculative_config.py JSON TARGET

Prints the parsed fields as JSON. `lookup` is the draft length by batch size as the scheduler expands it, entry 0 unused.
"""

import json
import os
import sys

os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")


def main(settings: str, target: str) -> None:
    from vllm.config import ModelConfig, ParallelConfig
    from vllm.config.speculative import SpeculativeConfig
    from vllm.v1.spec_decode.dynamic.utils import build_dynamic_sd_schedule_lookup

    parsed = SpeculativeConfig(
        **json.loads(settings),
        target_model_config=ModelConfig(model=target, dtype="float32"),
        target_parallel_config=ParallelConfig(),
    )
    found = {
        "method": parsed.method,
        "num_speculative_tokens": parsed.num_speculative_tokens,
        "draft_sample_method": parsed.draft_sample_method,
        "synthetic_acceptance_rates": parsed.synthetic_acceptance_rates,
    }
    schedule = parsed.num_speculative_tokens_per_batch_size
    if schedule is not None:
        schedule = [tuple(entry) for entry in schedule]
        last = max(end for _, end, _ in schedule)
        found["lookup"] = build_dynamic_sd_schedule_lookup(schedule, last, parsed.num_speculative_tokens)
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
