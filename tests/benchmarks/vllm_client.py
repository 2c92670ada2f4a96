"""vLLM's load generator, run by the interpreter of its own environment: one call per list of arguments, in one process.

    .venv-engines/bin/python tests/benchmarks/vllm_client.py < calls.json

Imports nothing of Understudy.
"""

import argparse
import json
import sys

from vllm.benchmarks import serve


def main() -> None:
    for arguments in json.load(sys.stdin):
        parser = argparse.ArgumentParser()
        serve.add_cli_args(parser)
        serve.main(parser.parse_args(arguments))
        print("done", flush=True)


if __name__ == "__main__":
    main()
