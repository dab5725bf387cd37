"""Pulling from the Hub: against a local server, with the faults a network has."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
import subprocess
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_hub import COMMIT, FakeHub
from recorder import Recorder
from waiting import PATIENCE, until

from edgespec.errors import HubError, OfflineError, UsageError
from edgespec.hub import store
from edgespec.hub.catalog import hub_file
from edgespec.hub.offline import offline
from edgespec.hub.pull import pull

NAME = "hf:maker/tiny-GGUF/tiny.gguf"
KEY = "maker/tiny-GGUF/tiny.gguf"
CONTENT = os.urandom(6 << 20)

CATALOG = """
[files.tiny-file]
name = "Tiny"
size = {size}
sha256 = "{sha256}"
licence = "Tiny-1.0"
notice = "Subject to the Tiny Terms."
[[files.tiny-file.sources]]
kind = "hub"
repo = "maker/tiny-GGUF"
file = "tiny.gguf"
[pairs.tiny]
about = "for tests"
target = "tiny-file"
draft = "ngram"
tested = true
"""


def catalog_text(content: bytes) -> str:
    return CATALOG.format(size=len(content), sha256=hashlib.sha256(content).hexdigest())


def part_size(root: Path) -> int:
    return sum(path.stat().st_size for path in root.rglob("*.part"))


def test_a_file_is_fetched_verified_and_recorded(hub: FakeHub, store_root: Path, progress: Recorder) -> None:
    sha256 = hub.add(KEY, CONTENT)
    (path,) = pull(NAME, progress=progress)
    assert path == store_root / KEY
    assert path.read_bytes() == CONTENT
    record = store.installed(hub_file(NAME))
    assert record is not None
    assert (record.sha256, record.checksum_from) == (sha256, "hub")
    assert ("fetching tiny", len(CONTENT), 0) in progress.tasks
    assert progress.advanced == len(CONTENT)
    assert [r.path for r in hub.requests] == [
        f"/maker/tiny-GGUF/resolve/main/{KEY.rsplit('/')[-1]}",
        f"/maker/tiny-GGUF/resolve/{COMMIT}/tiny.gguf",
        f"/cdn/{KEY}",
    ]


def test_a_second_pull_asks_nobody(hub: FakeHub, progress: Recorder) -> None:
    hub.add(KEY, CONTENT)
    pull(NAME, progress=progress)
    before = len(hub.requests)
    pull(NAME, offline=True, progress=progress)
    assert len(hub.requests) == before


def test_a_cut_connection_is_resumed(hub: FakeHub, progress: Recorder) -> None:
    hub.add(KEY, CONTENT)
    hub.cut_after = 4 << 20
    (path,) = pull(NAME, progress=progress)
    assert path.read_bytes() == CONTENT
    first, second = hub.downloads()
    assert first.range is None
    assert second.range is not None
    assert int(second.range.removeprefix("bytes=").split("-")[0]) >= 3 << 20


def test_a_killed_pull_goes_on_where_it_stopped(
    hub: FakeHub,
    store_root: Path,
    progress: Recorder,
    start_cli: Callable[..., subprocess.Popen[str]],
) -> None:
    hub.add(KEY, CONTENT)
    hub.stall_after = 4 << 20
    process = start_cli(NAME)
    until(lambda: part_size(store_root) >= 3 << 20)
    process.kill()
    process.wait()
    assert not (store_root / KEY).exists()
    done = part_size(store_root)
    hub.go.set()
    (path,) = pull(NAME, progress=progress)
    assert path.read_bytes() == CONTENT
    assert hub.downloads()[1].range == f"bytes={done}-"
    assert progress.tasks[0] == ("fetching tiny", len(CONTENT), done)
    assert list(store_root.rglob("*.part*")) == []


def test_two_processes_pull_once(hub: FakeHub, start_cli: Callable[..., subprocess.Popen[str]]) -> None:
    hub.add(KEY, CONTENT)
    hub.stall_after = 1 << 20
    first = start_cli(NAME)
    until(lambda: len(hub.downloads()) == 1)
    second = start_cli(NAME)
    assert second.stderr is not None
    assert "Another process is pulling tiny" in second.stderr.readline()
    hub.go.set()
    outputs = [process.communicate(timeout=PATIENCE) for process in (first, second)]
    assert [process.returncode for process in (first, second)] == [0, 0], outputs
    assert outputs[0][0] == outputs[1][0]
    assert len(hub.downloads()) == 1


def test_content_that_differs_from_the_checksum_is_deleted(
    hub: FakeHub, store_root: Path, progress: Recorder
) -> None:
    hub.add(KEY, CONTENT)
    hub.announced[KEY] = "0" * 64
    with pytest.raises(HubError, match=r"not the file it should be.*deleted"):
        pull(NAME, progress=progress)
    assert [p for p in store_root.rglob("*") if p.is_file() and p.suffix != ".lock"] == []


def test_a_file_without_a_checksum_is_refused(hub: FakeHub, progress: Recorder) -> None:
    hub.add(KEY, CONTENT)
    hub.announced[KEY] = "6b3a55e0261b0304143f805a24924d0c1c44524821305f31d9277843b8a10f4"  # git's, not ours
    with pytest.raises(HubError, match=r"publishes no checksum"):
        pull(NAME, progress=progress)
    assert hub.downloads() == []


def test_a_changed_file_is_refused_before_it_is_fetched(
    hub: FakeHub, progress: Recorder, use_catalog: Callable[[str], None]
) -> None:
    use_catalog(catalog_text(CONTENT))
    hub.add(KEY, b"another version")
    with pytest.raises(HubError, match=r"no longer the file the catalog names"):
        pull("tiny", progress=progress)
    assert hub.downloads() == []


def test_terms_are_shown_before_fetching_and_the_catalog_vouches(
    hub: FakeHub, progress: Recorder, use_catalog: Callable[[str], None]
) -> None:
    use_catalog(catalog_text(CONTENT))
    sha256 = hub.add(KEY, CONTENT)
    pull("tiny", progress=progress)
    assert progress.messages == ["Subject to the Tiny Terms."]
    record = store.installed(hub_file(NAME))
    assert record is not None
    assert (record.sha256, record.checksum_from) == (sha256, "catalog")
    pull("tiny", progress=progress)
    assert progress.messages == ["Subject to the Tiny Terms."]  # nothing was fetched


def test_terms_reach_those_who_pass_no_progress(
    hub: FakeHub, use_catalog: Callable[[str], None], caplog: pytest.LogCaptureFixture
) -> None:
    use_catalog(catalog_text(CONTENT))
    hub.add(KEY, CONTENT)
    pull("tiny")
    assert "Subject to the Tiny Terms." in caplog.text


def test_a_missing_repository_is_named(hub: FakeHub) -> None:
    with pytest.raises(HubError, match=r"no repository maker/tiny-GGUF, or it is private"):
        pull(NAME)


def test_a_missing_file_is_named(hub: FakeHub) -> None:
    hub.add("maker/tiny-GGUF/other.gguf", CONTENT)
    with pytest.raises(HubError, match=r"has no file tiny.gguf"):
        pull(NAME)


def test_a_gated_repository_asks_for_a_token_and_takes_it(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add(KEY, CONTENT)
    hub.gated["maker/tiny-GGUF"] = "hf_good"
    with pytest.raises(HubError, match=r"gated: accept its terms.*HF_TOKEN"):
        pull(NAME)
    monkeypatch.setenv("HF_TOKEN", "hf_bad")
    with pytest.raises(HubError, match=r"gated: accept its terms.*HF_TOKEN"):
        pull(NAME)
    monkeypatch.setenv("HF_TOKEN", "hf_good")
    (path,) = pull(NAME)
    assert path.read_bytes() == CONTENT
    assert hub.downloads()[0].authorization is None  # the content network must not see the token


@pytest.mark.parametrize(
    ("status", "said"),
    [(500, "answered 500"), (403, "may not read it"), (401, "no repository|valid token")],
)
def test_other_refusals_are_explained(hub: FakeHub, status: int, said: str) -> None:
    hub.broken["maker/tiny-GGUF"] = status
    with pytest.raises(HubError, match=said):
        pull(NAME)


def test_a_dead_hub_is_explained() -> None:
    with pytest.raises(HubError, match=r"Could not fetch maker/tiny-GGUF/tiny.gguf from the Hub"):
        pull(NAME)


def test_an_endpoint_that_is_no_hub_is_explained(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", hub.url + "/cdn")
    hub.files["maker/tiny-GGUF/resolve/main/tiny.gguf"] = CONTENT
    with pytest.raises(HubError, match=r"publishes no checksum|Could not fetch"):
        pull(NAME)


@pytest.mark.parametrize("how", ["flag", "EDGESPEC_OFFLINE", "HF_HUB_OFFLINE"])
def test_offline_touches_nothing(hub: FakeHub, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    hub.add(KEY, CONTENT)
    if how != "flag":
        monkeypatch.setenv(how, "1")
    with pytest.raises(OfflineError, match=f"When online: edgespec pull {NAME}"):
        pull(NAME, offline=how == "flag")
    assert hub.requests == []


@pytest.mark.parametrize("value", ["1", "y", "True ", "0", "", "off", "False"])
def test_whatever_is_no_denial_asks_to_be_offline(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("EDGESPEC_OFFLINE", value)
    assert offline() is (value in ("1", "y", "True "))


def test_too_little_room_is_said_before_downloading(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch, store_root: Path
) -> None:
    hub.add(KEY, CONTENT)
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(1, 1, 5_000_000))
    with pytest.raises(HubError, match=r"Not enough room.*6 MB needed, 5 MB free"):
        pull(NAME)
    assert hub.downloads() == []
    # A pull that has begun needs only the rest.
    part = store_root / "maker/tiny-GGUF" / f"tiny.gguf.{hashlib.sha256(CONTENT).hexdigest()[:16]}.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(CONTENT[: 3 << 20])
    (path,) = pull(NAME)
    assert path.read_bytes() == CONTENT


def test_a_disk_that_fills_up_meanwhile_is_said_with_what_the_file_takes(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    hub.add(KEY, CONTENT)
    monkeypatch.setattr("edgespec.hub.hub_source.http_get", full)
    with pytest.raises(HubError, match="The disk is full: free 6 MB and pull again"):
        pull(NAME)


def test_a_file_in_the_hubs_cache_is_used_even_offline(
    hub: FakeHub, machine: Path, progress: Recorder
) -> None:
    cached = put_into_cache(machine, hashlib.sha256(CONTENT).hexdigest(), CONTENT)
    (path,) = pull(NAME, offline=True, progress=progress)
    assert path.read_bytes() == CONTENT
    assert path.samefile(cached)  # a second name, not a copy
    assert hub.requests == []
    assert progress.messages == ["tiny was in the Hugging Face cache."]


def test_a_damaged_file_in_the_hubs_cache_is_not_used(
    hub: FakeHub, machine: Path, progress: Recorder
) -> None:
    hub.add(KEY, CONTENT)
    cached = put_into_cache(machine, hashlib.sha256(CONTENT).hexdigest(), b"damaged")
    (path,) = pull(NAME, progress=progress)
    assert path.read_bytes() == CONTENT
    assert cached.read_bytes() == b"damaged"  # not ours to delete
    assert "another file; not used" in progress.messages[0]


def test_a_file_in_the_hubs_cache_that_there_is_no_room_to_copy_is_not_called_another(
    hub: FakeHub, machine: Path, progress: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add(KEY, CONTENT)
    put_into_cache(machine, hashlib.sha256(CONTENT).hexdigest(), CONTENT)
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(1, 1, 100))

    def other_disk(*_: object) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(Path, "hardlink_to", other_disk)
    with pytest.raises(HubError, match="Not enough room for tiny"):
        pull(NAME, progress=progress)
    assert len(progress.messages) == 1
    assert progress.messages[0].startswith("Not enough room for a copy of tiny from the Hugging Face cache")


def test_a_store_that_cannot_take_a_file_of_the_cache_is_said(
    hub: FakeHub, machine: Path, store_root: Path, progress: Recorder
) -> None:
    put_into_cache(machine, hashlib.sha256(CONTENT).hexdigest(), CONTENT)
    store_root.parent.mkdir(parents=True)
    store_root.write_text("in the way")
    with pytest.raises(HubError, match=r"The models folder .* cannot be used"):
        pull(NAME, progress=progress)


def test_the_data_is_on_the_disk_before_the_file_has_its_name(
    hub: FakeHub, store_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add(KEY, CONTENT)
    synced: list[tuple[str, bool]] = []
    final = store_root / KEY

    def fsync(descriptor: int) -> None:
        synced.append((Path(os.readlink(f"/proc/self/fd/{descriptor}")).name, final.exists()))  # noqa: PTH115

    monkeypatch.setattr(os, "fsync", fsync)
    pull(NAME)
    assert (f"tiny.gguf.{hashlib.sha256(CONTENT).hexdigest()[:16]}.part", False) in synced
    assert (final.parent.name, True) in synced


def put_into_cache(home: Path, sha256: str, content: bytes) -> Path:
    repository = home / "hf" / "hub" / "models--maker--tiny-GGUF"
    blob = repository / "blobs" / sha256
    blob.parent.mkdir(parents=True)
    blob.write_bytes(content)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    snapshot = repository / "snapshots" / COMMIT / "tiny.gguf"
    snapshot.parent.mkdir(parents=True)
    snapshot.symlink_to(os.path.relpath(blob, snapshot.parent))
    return blob


def test_a_file_that_changed_in_the_store_is_fetched_again(hub: FakeHub, progress: Recorder) -> None:
    hub.add(KEY, CONTENT)
    (path,) = pull(NAME, progress=progress)
    path.write_bytes(b"overwritten")
    pull(NAME, progress=progress)
    assert path.read_bytes() == CONTENT
    assert "is not the file it was" in progress.messages[0]


def test_a_file_touched_but_unchanged_is_hashed_not_fetched(hub: FakeHub, progress: Recorder) -> None:
    hub.add(KEY, CONTENT)
    (path,) = pull(NAME, progress=progress)
    os.utime(path, (1, 1))
    assert store.installed(hub_file(NAME)) is None
    pull(NAME, progress=progress)
    assert store.installed(hub_file(NAME)) is not None
    assert len(hub.downloads()) == 1


def test_all_parts_of_a_split_model_are_pulled(hub: FakeHub) -> None:
    for i in (1, 2):
        hub.add(f"maker/big/b-0000{i}-of-00002.gguf", b"part %d" % i)
    paths = pull("hf:maker/big/b-00002-of-00002.gguf")
    assert [path.read_bytes() for path in paths] == [b"part 1", b"part 2"]


@pytest.mark.parametrize(
    "name",
    [
        "hf:maker",
        "hf:maker/repo",
        "hf:../../x.gguf",
        "hf:maker/../x.gguf",
        "hf:a/b/../../c.gguf",
        "hf:maker/tiny--GGUF/tiny.gguf",
        "hf:maker/tiny-/tiny.gguf",
        "nonsense",
    ],
)
def test_names_that_cannot_be_pulled(name: str) -> None:
    with pytest.raises(UsageError):
        pull(name)


def test_an_owner_repo_path_without_prefix_is_corrected() -> None:
    with pytest.raises(UsageError, match=r"named hf:owner/repo/file.gguf"):
        pull("maker/tiny-GGUF/tiny.gguf")


def test_a_disk_full_at_the_record_leaves_nothing_of_it(
    hub: FakeHub, store_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, *_: object) -> None:
        path.touch()
        raise OSError(28, "No space left on device")

    hub.add("maker/tiny/tiny.gguf", b"GGUF" + bytes(96))
    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(HubError, match="No space left"):
        pull("hf:maker/tiny/tiny.gguf")
    assert [path for path in store_root.rglob("*.verified.json*") if path.is_file()] == []


def test_a_pull_ends_well_where_only_those_who_may_write_can_have_data_reach_the_disk(
    hub: FakeHub, store_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on Windows."""

    def fsync(descriptor: int) -> None:
        if not fcntl.fcntl(descriptor, fcntl.F_GETFL) & (os.O_WRONLY | os.O_RDWR):
            raise OSError(errno.EBADF, "Bad file descriptor")

    hub.add("maker/tiny/tiny.gguf", b"GGUF" + bytes(96))
    monkeypatch.setattr(os, "fsync", fsync)
    (path,) = pull("hf:maker/tiny/tiny.gguf")
    assert path.read_bytes() == b"GGUF" + bytes(96)
