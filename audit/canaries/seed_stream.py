"""Draws that anybody can repeat from the seed alone: SHA-256 of the seed and a name, in no library's hands.

Streams of random generators change between versions of a library, and what a small generator gives away of one draw may
tell the next. A hash does neither: whoever knows the ids knows nothing of the coins, and whoever is told the seed after
the judgement can check every coin with sha256sum.
"""

import hashlib

import numpy as np


def digest(seed: int, *names: object) -> bytes:
    """SHA-256 of "seed:name:name...", 32 bytes.

    >>> digest(7, "coin", 0).hex()[:8]
    '73514d13'
    """
    return hashlib.sha256(":".join(map(str, (seed, *names))).encode()).digest()


def fair_coin(seed: int, *names: object) -> bool:
    """The last bit of the digest."""
    return bool(digest(seed, *names)[-1] & 1)


def token(seed: int, *names: object) -> str:
    """64 bits in hexadecimal: an id that another planting does not have."""
    return digest(seed, *names).hex()[:16]


def generator(seed: int, *names: object) -> np.random.Generator:
    """A generator for what need not be repeated bit by bit by others, such as the pixels of a canary."""
    return np.random.default_rng(int.from_bytes(digest(seed, *names), "big"))
