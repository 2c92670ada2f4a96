"""Config keys that have a new name. An old key is refused with the new one."""

RENAMED = {
    "corpus.max_reject_share": "corpus.max_rejected_share",
    "distill.shares": "distill.domain_shares",
    "gate.profile.none": "gate.profile.unquantized",
    "generate.also_at": "generate.examination_samplings",
    "generate.keep": "generate.distribution_selection",
    "generate.kept": "generate.distribution_tokens",
    "pair.reference.move_steps": "pair.reference.fine_tune_steps",
    "pair.reference.move_learning_rate": "pair.reference.fine_tune_learning_rate",
    "quantize.head": "quantize.output_head",
    "quantize.recovery.above": "quantize.recovery.max_acceptance_loss",
}
