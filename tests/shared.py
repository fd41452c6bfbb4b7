"""Where the tests find the shared data set, which is not part of the repository."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]


def shared_data(name: str) -> Path:
    """Path of a shared file; the calling test is skipped with the reason where it is absent."""
    folder = Path(os.environ.get("CURTAILSIM_DATA", REPOSITORY.parent / "shared" / "data"))
    path = folder / name
    if not path.exists():
        pytest.skip(f"{path} is absent (CURTAILSIM_DATA names the folder of the shared data)")
    return path
