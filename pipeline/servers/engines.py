"""The API of each engine by its name in the config."""

from pipeline.config.server import Api as Name
from pipeline.servers.api import Api
from pipeline.servers.by_token import AskingByToken
from pipeline.servers.llama_cpp import LlamaCpp
from pipeline.servers.sglang import Sglang
from pipeline.servers.target import Asking
from pipeline.servers.vllm import Vllm

APIS: dict[Name, Api] = {"vllm": Vllm(), "sglang": Sglang(), "llama.cpp": LlamaCpp()}


def asking_of(name: Name, model: str, vocabulary: int) -> Asking:
    """How endpoints of the engine `name` are asked."""
    api = APIS[name]
    return AskingByToken(api, model, vocabulary) if isinstance(api, LlamaCpp) else Asking(api, model, vocabulary)
