"""A process that promotes drafts as it is told on stdin, one line each: DRAFT EXPECTED_VERSION RUN. It answers `won VERSION` or
`lost REASON`. The first argument is MLflow's address, the second a store."""

import sys
from pathlib import Path

from pipeline.errors import UnderstudyError
from pipeline.registry.drafts import RegisteredDraft
from pipeline.registry.registry import registry_for
from pipeline.store.artifacts import Store
from tests.integration.mlflow_fixtures import config_of
from tests.integration.test_registry import promote


def main() -> None:
    registry = registry_for(config_of(tracking={"uri": sys.argv[1]}), Store(Path(sys.argv[2])))
    registry.champion()
    print("ready", flush=True)
    for line in sys.stdin:
        draft, version, run = line.split()
        expected = None if version == "none" else RegisteredDraft(name=registry.name, version=version)
        try:
            champion = promote(registry, Path(draft), expected, run_id=run)
            print(f"won {champion.version}", flush=True)
        except UnderstudyError as error:
            print(f"lost {error}", flush=True)


main()
