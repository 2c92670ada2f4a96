"""Config keys that have a new name. An old key is refused with the new one."""

RENAMED = {
    "gate.profile.none": "gate.profile.unquantized",
    "pair.reference.move_steps": "pair.reference.fine_tune_steps",
    "pair.reference.move_learning_rate": "pair.reference.fine_tune_learning_rate",
}
