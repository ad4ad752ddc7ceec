"""Rewrites the asserts of all test files once, before the processes of a run need them.

pytest keeps what it has rewritten as bytecode. In a fresh clone there is none yet, and each process
of a run would do all of it at the same moment: 15 s of a processor, five times.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sys
from pathlib import Path

import pytest
from _pytest.assertion import rewrite

ROOT = Path(__file__).resolve().parents[2]


def rewrite_tests(config: pytest.Config) -> None:
    """Leave bytecode of every test file, with all processors."""
    if sys.dont_write_bytecode or not hasattr(os, "fork"):
        return
    stale = [path for path in ROOT.glob("tests/**/test_*.py") if not is_rewritten(path)]
    if stale:
        with multiprocessing.get_context("fork").Pool(initializer=use, initargs=(config,)) as pool:
            pool.map(rewrite_test, stale)


def is_rewritten(path: Path) -> bool:
    return rewrite._read_pyc(path, bytecode_of(path)) is not None


def bytecode_of(path: Path) -> Path:
    """Where pytest keeps it."""
    return rewrite.get_cache_dir(path) / (path.stem + rewrite.PYC_TAIL)


_config: list[pytest.Config] = []
use = _config.append


def rewrite_test(path: Path) -> None:
    """Do what pytest's import hook does with a test file, but for running it."""
    (config,) = _config
    with contextlib.suppress(SyntaxError):  # pytest shows it
        source, code = rewrite._rewrite_test(path, config)
        bytecode_of(path).parent.mkdir(parents=True, exist_ok=True)
        rewrite._write_pyc(config.stash[rewrite.assertstate_key], code, source, bytecode_of(path))
