"""What a folder with an ONNX language model looks like, without opening the model."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from edgespec.errors import ModelError

GENAI = "genai_config.json"
_NAMES = ("model.onnx", "decoder_model_merged.onnx", "decoder_with_past_model.onnx")
_SUBFOLDERS = ("", "onnx")
_CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "max_sequence_length", "n_ctx")
UNKNOWN_CONTEXT = 2048
"""tokens, so few that most models take them"""


def is_onnx(path: Path) -> bool:
    """Whether a path names an ONNX model: a file, or a folder with one."""
    if path.suffix.lower() == ".onnx":
        return True
    return path.is_dir() and (model_in(path) is not None)


def model_in(folder: Path) -> Path | None:
    """The model file of a folder, if there is one and no doubt which."""
    if (folder / GENAI).is_file():
        name = read_json(folder / GENAI, "model", "decoder").get("filename")
        return folder / name if isinstance(name, str) else None
    for sub in _SUBFOLDERS:
        for name in _NAMES:
            if (folder / sub / name).is_file():
                return folder / sub / name
    found = models_in(folder)
    return found[0] if len(found) == 1 else None


def models_in(folder: Path) -> list[Path]:
    """The files of a folder that may each be a model, such as one in several precisions."""
    found = (file for sub in _SUBFOLDERS for file in (folder / sub).glob("*.onnx"))
    return sorted(file for file in found if not file.name.startswith("."))  # as a Mac leaves on exFAT


def home_of(path: Path) -> Path:
    """The folder with the tokenizer and the configuration of a model file or folder."""
    folder = path if path.is_dir() else path.parent
    if folder.name == "onnx" and not (folder / "tokenizer.json").is_file():
        return folder.parent
    return folder


def size_of(path: Path) -> int:
    """Bytes of a model: of all files of a folder; of a file, which may lie among others, those with its
    weights."""
    files: Iterable[Path] = path.rglob("*") if path.is_dir() else files_of(path)
    return sum(file.stat().st_size for file in files if file.is_file())


def weight_bytes(path: Path) -> int:
    """Bytes of a model's weights, an embedding table that is only looked up included."""
    model = model_in(path) if path.is_dir() else path
    return 0 if model is None else sum(file.stat().st_size for file in files_of(model))


def files_of(model: Path) -> list[Path]:
    """A model file and those beside it that have its weights."""
    names = (f"{model.name}.data", f"{model.name}_data")  # of large ones several: _data, _data_1, …
    return [model, *sorted(f for f in model.parent.iterdir() if f.name.startswith(names) and f.is_file())]


def trained_context(path: Path) -> int:
    """Tokens a model of others was trained for; UNKNOWN_CONTEXT where its configuration does not say."""
    home = home_of(path)
    if (home / GENAI).is_file():
        value = read_json(home / GENAI, "model").get("context_length")
        return value if isinstance(value, int) and value > 0 else UNKNOWN_CONTEXT
    config = read_json(home / "config.json") if (home / "config.json").is_file() else {}
    found = (config.get(key) for key in _CONTEXT_KEYS)
    return next((value for value in found if isinstance(value, int) and value > 0), UNKNOWN_CONTEXT)


def read_json(file: Path, *keys: str) -> dict[str, Any]:
    """A JSON object in a file, or the one behind these keys, which may be missing: {}. Raises ModelError
    for anything else."""
    try:
        value = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{file} cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise ModelError(f"{file} does not hold a JSON object")
    for key in keys:
        value = value.get(key, {})
        if not isinstance(value, dict):
            raise ModelError(f"{file} is damaged: {key!r} is not a JSON object")
    return value
