"""The API of each engine by its name in the config."""

from pipeline.config.server import Api as Name
from pipeline.servers.api import Api
from pipeline.servers.sglang import Sglang
from pipeline.servers.vllm import Vllm

APIS: dict[Name, Api] = {"vllm": Vllm(), "sglang": Sglang()}
