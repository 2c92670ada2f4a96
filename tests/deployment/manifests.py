"""Checks the Kubernetes manifests of a directory without a cluster: every key and type against the models of the Kubernetes
client, and the pods of CronJobs and Jobs against the pod template.

Run in an environment with `kubernetes` (`make lint-deployment`).
"""

import re
import sys
from pathlib import Path
from typing import Any

import yaml
from kubernetes import client

_PLAIN = {"str": str, "int": int, "bool": bool, "float": (int, float), "object": object, "datetime": str}


def problems_of(value: Any, kind: str, where: str) -> list[str]:
    """What is wrong with `value` as an object of the client's type `kind`; an empty list if nothing is."""
    if value is None:
        return [f"{where}: empty"]
    if inner := re.fullmatch(r"list\[(.*)\]", kind):
        if not isinstance(value, list):
            return [f"{where}: not a list"]
        return [found for number, one in enumerate(value) for found in problems_of(one, inner[1], f"{where}[{number}]")]
    if inner := re.fullmatch(r"dict\[str, (.*)\]", kind):
        if not isinstance(value, dict):
            return [f"{where}: not a mapping"]
        return [found for key, one in value.items() for found in problems_of(one, inner[1], f"{where}.{key}")]
    if kind in _PLAIN:
        wrong = not isinstance(value, _PLAIN[kind]) or (kind == "int" and isinstance(value, bool))
        return [f"{where}: {value!r} is no {kind}"] if wrong else []
    return _fields(value, getattr(client, kind), where)


def _fields(value: Any, model: Any, where: str) -> list[str]:
    """The client's constructor checks what is required, and ranges."""
    if not isinstance(value, dict):
        return [f"{where}: not a mapping"]
    names = {key: name for name, key in model.attribute_map.items()}
    found = [f"{where}: unknown key {key}" for key in value if key not in names]
    known = {names[key]: one for key, one in value.items() if key in names}
    for name, one in known.items():
        found += problems_of(one, model.openapi_types[name], f"{where}.{model.attribute_map[name]}")
    try:
        model(**known)
    except ValueError as error:
        found.append(f"{where}: {error}")
    return found


def documents(path: Path) -> list[dict[str, Any]]:
    """Every object of a file; those of a List one by one."""
    read = [one for one in yaml.safe_load_all(path.read_text(encoding="utf-8")) if one is not None]
    return [item for one in read for item in (one["items"] if one["kind"] == "List" else [one])]


def differences(pod: dict[str, Any], template: dict[str, Any]) -> list[str]:
    """Where a pod is not the template, but for what its container runs and may use."""
    changed = [key for key in {*pod, *template} - {"containers"} if pod.get(key) != template.get(key)]
    (one,), (other,) = pod["containers"], template["containers"]
    free = {"command", "resources", "env"}
    changed += ["containers[0].env"] if any(each not in one.get("env", []) for each in other.get("env", [])) else []
    return changed + [f"containers[0].{key}" for key in {*one, *other} - free if one.get(key) != other.get(key)]


def main(folder: Path) -> list[str]:
    """All problems of the manifests in `folder`."""
    objects = [(path.name, one) for path in sorted(folder.glob("*.yaml")) for one in documents(path)]
    found = [
        problem
        for name, one in objects
        for problem in problems_of(one, f"V1{one['kind']}", f"{name}: {one['kind']} {one['metadata']['name']}")
    ]
    (template,) = (one["spec"] for _, one in objects if one["kind"] == "Pod")
    for name, one in objects:
        if one["kind"] in ("CronJob", "Job"):
            job = one["spec"]["jobTemplate"] if one["kind"] == "CronJob" else one
            pod = job["spec"]["template"]["spec"]
            where = f"{name}: {one['metadata']['name']}"
            found += [f"{where}: {key} is not that of the pod template" for key in differences(pod, template)]
    print(f"{len(objects)} manifests, {len(found)} problems")
    return found


if __name__ == "__main__":
    sys.exit("\n".join(main(Path(sys.argv[1]))) or 0)
