"""vLLM's CPU build as a server on loopback, in its own environment, for as long as a test needs it."""

import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

_STARTS_WITHIN = 240.0
_ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
}


def free_port() -> int:
    """A port of loopback that nobody listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@dataclass
class Server:
    """`python -m vllm.entrypoints.openai.api_server`, which is how the CPU build serves. Started again it has the same URL."""

    python: Path
    model: Path
    arguments: Sequence[str]
    log: Path
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self, wait: bool = True) -> "Server":
        """AssertionError with the end of its log if it does not come up."""
        command = [
            *(
                str(self.python),
                "-m",
                "vllm.entrypoints.openai.api_server",
                "--host",
                "127.0.0.1",
                "--port",
                str(self.port),
            ),
            *("--model", str(self.model), "--served-model-name", "target", "--dtype", "float32", "--enforce-eager"),
            *self.arguments,
        ]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command, env=os.environ | _ENVIRONMENT, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
        if wait:
            self.wait()
        return self

    def wait(self) -> None:
        """Until it answers."""
        assert self.process is not None  # started
        until = time.monotonic() + _STARTS_WITHIN
        while time.monotonic() < until and self.process.poll() is None:
            try:
                with urllib.request.urlopen(f"{self.url}/v1/models", timeout=5):
                    return
            except (urllib.error.URLError, OSError):
                time.sleep(0.5)
        raise AssertionError(f"vLLM did not start:\n{self.log.read_text(errors='replace')[-3000:]}")

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        """End it and its workers."""
        if self.process is not None and self.process.poll() is None:
            os.killpg(self.process.pid, how)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait(30)
        self.process = None
