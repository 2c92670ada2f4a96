"""The libraries that Understudy requires, by the metadata of its package. Imports none of them."""

from importlib import metadata

from packaging.requirements import Requirement

from pipeline.planning.doctor.check import Check, installed


def libraries() -> list[Check]:
    """A line for each required library; those of extras are left out."""
    try:
        required = metadata.requires("understudy") or []
    except metadata.PackageNotFoundError:
        return [
            Check(
                "understudy",
                "missing",
                "not installed, so its requirements are unknown",
                "pip install -c constraints.txt -e .",
            )
        ]
    requirements = [Requirement(line) for line in required]
    return [
        Check("understudy", "ok", metadata.version("understudy")),
        *(
            _library(requirement)
            for requirement in requirements
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        ),
    ]


def _library(required: Requirement) -> Check:
    name, bounds = required.name, required.specifier
    wanted, remedy = f"wanted {bounds or 'any version'}", f"pip install '{name}{bounds}'"
    if not installed(name):
        return Check(name, "missing", f"not installed ({wanted})", remedy)
    version = metadata.version(name)
    if not bounds.contains(version, prereleases=True):
        return Check(name, "missing", f"{version} ({wanted})", remedy)
    return Check(name, "ok", f"{version} ({wanted})")
