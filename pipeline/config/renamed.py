"""Config keys that have a new name. An old key is refused with the new one."""

RENAMED = {
    "gate.profile.none": "gate.profile.unquantized",
}
