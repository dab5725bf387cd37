from __future__ import annotations

from pathlib import Path

import pytest
from real_models import need_module
from wheelhouse import build


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All that bundles of this machine take."""
    for name in ("llama_cpp", "onnxruntime", "onnx", "tokenizers", "starlette", "uvicorn", "llguidance"):
        need_module(name)
    return build(tmp_path_factory.mktemp("wheels") / "all", "edgespec[llama,onnx,server,grammar]", "pip")
