"""Structs that Python and C both declare: their layouts are compared when a library is loaded.

ctypes trusts a `Structure` without a check. One field too many, or two in another order, would make compiled code read other
memory. So each C source exports the name, offset and size of every field (`field_layout` in `simd.h`).
"""

import ctypes


class _FieldLayout(ctypes.Structure):
    _fields_ = (("name", ctypes.c_char_p), ("offset", ctypes.c_int64), ("size", ctypes.c_int64))


def check_layout(library: ctypes.CDLL, name: str, structure: type[ctypes.Structure]) -> None:
    """Asserts that `structure` is the library's struct `name`: same size, and same name, offset and size of each field."""
    in_c = _exported(library, name)
    in_python = [(name, 0, ctypes.sizeof(structure))]
    for field, *_ in structure._fields_:
        place = getattr(structure, field)
        in_python.append((field, place.offset, place.size))
    different = sorted(set(in_c) ^ set(in_python), key=lambda one: one[1])
    assert in_c == in_python, f"struct {name} is not the same in C and in Python: {different}"


def _exported(library: ctypes.CDLL, name: str) -> list[tuple[str, int, int]]:
    """(name, offset, size) of the struct and of its fields, up to the null name that ends the list."""
    first = ctypes.pointer(_FieldLayout.in_dll(library, f"{name}_layout"))
    found: list[tuple[str, int, int]] = []
    while first[len(found)].name is not None:
        entry = first[len(found)]
        found.append((entry.name.decode(), entry.offset, entry.size))
    return found
