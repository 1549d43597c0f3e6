"""What every test shares: no network, one thread, quiet libraries, and tiny models made once a session."""

from __future__ import annotations

import os
import sys
import tempfile

import pytest

_CACHE = tempfile.TemporaryDirectory(prefix="rlctl-tests-")
# set before torch, transformers and datasets are imported; processes that tests start inherit it
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_CACHE"] = _CACHE.name
os.environ["TRANSFORMERS_VERBOSITY"] = "error"
os.environ["TOKENIZERS_PARALLELISM"] = "false"


@pytest.fixture(scope="session")
def env(tmp_path_factory):
    """A folder with tiny models, prompts of mixed lengths and an importable reward: see tiny.Environment."""
    import tiny  # here, so that tests without models never import torch

    made = tiny.Environment(tmp_path_factory.mktemp("tiny"))
    sys.path.insert(0, str(made.root))
    yield made
    sys.path.remove(str(made.root))
