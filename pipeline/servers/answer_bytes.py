"""The bytes of an answer, up to a bound: what a server sends is not trusted to be of the size that was asked for. Torch-free."""

import zlib

import aiohttp

_CHUNK = 1 << 16
_ENTRY_BYTES = 512  # of a token with its log p in JSON, with the text and the bytes of the token that some engines add
_LEAST = 1 << 20
_INFLATED = ("gzip", "deflate")


class TooMuch(ValueError):
    """The answer is larger than its bound, or packed in a way that cannot be read. The text states which."""


def most_bytes(tokens: int, listed: int) -> int:
    """The most bytes of JSON that an answer about `tokens` tokens can have, each with `listed` likeliest tokens: several times
    what engines send."""
    return _LEAST + tokens * (listed + 2) * _ENTRY_BYTES


async def read(answer: aiohttp.ClientResponse, most: int) -> bytes:
    """The body of an answer, of a session that decompresses nothing. TooMuch as soon as there are more than `most` bytes, before
    they are all received or inflated; of an error, its first `most` bytes."""
    packing = answer.headers.get("Content-Encoding", "identity").strip().lower()
    if packing not in ("", "identity", *_INFLATED):
        raise TooMuch(f"the answer is packed as {packing!r}, which was not asked for")
    # Some gateways pack though `Accept-Encoding: identity` was sent. 47: by gzip or by zlib.
    inflate = zlib.decompressobj(wbits=47) if packing in _INFLATED else None
    body = bytearray()
    async for chunk in answer.content.iter_chunked(_CHUNK):
        try:
            body += chunk if inflate is None else inflate.decompress(chunk, most + 1 - len(body))
        except zlib.error as error:
            raise TooMuch(f"the answer cannot be inflated ({error})") from None
        if len(body) > most and not answer.ok:
            break
        if len(body) > most:
            raise TooMuch(f"the answer is larger than {most:,} bytes, which is more than the request can take")
    return bytes(body[:most])
