"""Where does chance come from?  From the scenario's seed, in streams that do not disturb each other."""

from __future__ import annotations

import hashlib
import json

import numpy as np


def stream(seed: int, *names: str) -> np.random.Generator:
    """Random generator of its own for every seed and name; the names may not be confused with each other."""
    digest = hashlib.sha256(json.dumps([seed, *names]).encode()).digest()
    return np.random.default_rng(int.from_bytes(digest, "big"))
