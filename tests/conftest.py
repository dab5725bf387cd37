"""Model files and loaded backends that the whole session shares; see pair.py and closed_form/."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from closed_form import CHAT_TEMPLATE, write_gguf
from hypothesis import settings
from pair import DRAFT, HOPELESS, KEPT, TARGET, VOCABULARY, load
from real_models import need_module

from edgespec.backends.llama_cpp import LlamaCpp
from edgespec.hub import store
from edgespec.hub.catalog import load_catalog

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # some tests import onnxruntime by themselves

# How long an example takes is no test. In CI the examples are the same every time, so that a change is not
# refused for what it has not touched.
settings.register_profile("edgespec", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("edgespec")


@pytest.fixture(scope="module", autouse=True)
def home_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What tests measure, learn and convert is seen by no others, nor left on the machine. The catalog's
    models that are on it are links here."""
    files = [store.path_of(file) for file in load_catalog().files.values()]
    folder, models = tmp_path_factory.mktemp("home"), store.home()
    for file in (path for model in files for path in (model, store.record_path(model)) if path.is_file()):
        link = folder / "models" / file.relative_to(models)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(file)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EDGESPEC_HOME", str(folder))
        yield
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def model_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with target.gguf, draft.gguf (padded by 6 rows), hopeless.gguf, and
    incompatible.gguf, in whose vocabulary the id of "m" means "o"."""
    need_module("llama_cpp")
    folder = tmp_path_factory.mktemp("closed-form")
    write_gguf(TARGET, folder / "target.gguf", chat_template=CHAT_TEMPLATE, name="target")
    write_gguf(DRAFT.padded(6), folder / "draft.gguf", chat_template=CHAT_TEMPLATE, name="draft")
    write_gguf(HOPELESS, folder / "hopeless.gguf", name="hopeless")
    renamed = TARGET.renamed(TARGET.vocabulary.id(b"m"), b"o")
    write_gguf(renamed, folder / "incompatible.gguf", name="incompatible")
    return folder


@pytest.fixture(scope="session")
def converted(model_files: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of `model_files`, with target, draft and hopeless as ONNX models beside the GGUF files."""
    need_module("onnxruntime")
    need_module("onnx")
    from edgespec.convert.convert import convert

    folder = shutil.copytree(model_files, tmp_path_factory.mktemp("converted") / "models")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EDGESPEC_HOME", str(folder / "home"))
        for name in ("target", "draft", "hopeless"):
            convert(folder / f"{name}.gguf")
    return folder


@pytest.fixture(scope="session")
def trimmed(converted: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of `converted`, with the draft trimmed to `KEPT` and one end of a text."""
    import numpy as np

    from edgespec.convert.convert import convert
    from edgespec.convert.head import Head

    folder = shutil.copytree(converted, tmp_path_factory.mktemp("trimmed") / "models")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EDGESPEC_HOME", str(folder / "home"))
        head = Head(np.array(sorted([*KEPT, VOCABULARY.eos]), np.int32))
        convert(folder / "draft.gguf", portable=False, head=head)
    return folder


@pytest.fixture(scope="session")
def target(model_files: Path) -> Iterator[LlamaCpp]:
    """The target, loaded: a test closes the sequences it opens and leaves the backend open."""
    backend = load(model_files / "target.gguf", sequences=32)
    yield backend
    backend.close()


@pytest.fixture(scope="session")
def draft(model_files: Path) -> Iterator[LlamaCpp]:
    """The draft, loaded, likewise."""
    backend = load(model_files / "draft.gguf")
    yield backend
    backend.close()


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """An onnxruntime with another provider, whose device or libraries are missing."""
    import onnxruntime

    everything = ["CUDAExecutionProvider", "CPUExecutionProvider"]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: everything)
