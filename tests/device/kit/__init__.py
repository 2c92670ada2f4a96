"""The device kit: one folder that measures on a borrowed GPU, without a network, what nothing else can tell.

`build.py` makes the folder, `start.py` is its `kit.py`, `run.py` runs its parts, and `models.py` has the shapes they measure.
Each part is a module with `measures(setup)`: names and functions, most important first, each giving one JSON object.
"""
