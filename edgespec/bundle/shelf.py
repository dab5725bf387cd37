"""Where the wheels of a bundle come from: folders of the user's, what is built here, the package index.

edgespec's own wheel is built where edgespec runs from a checkout, and otherwise comes from the index like
the others. pip is asked what it would fetch (`gather`), so that it can be said before it does (`fetch`).
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from edgespec import __version__
from edgespec.bundle.machine import Machine
from edgespec.bundle.wheel import Wheel, lacking
from edgespec.errors import HubError, OfflineError, UsageError
from edgespec.hub import pip
from edgespec.hub.progress import Progress

LLAMA = "llama-cpp-python"
_WHEELS_ONLY = ("--only-binary", ":all:")


@dataclass(frozen=True)
class Shelf:
    """Wheels for a machine."""

    machine: Machine
    folders: tuple[Path, ...]
    """of the user's"""
    built: Path
    """for what is built here; its parent takes pip's temporary files"""
    offline: bool
    progress: Progress

    def gather(self, extras: Sequence[str]) -> list[Wheel]:
        """Build what has to be built, and ask what else is needed: edgespec with these extras, and pip.

        Raises UsageError and HubError for what cannot be had, OfflineError where that takes the index.
        """
        wanted = f"edgespec[{','.join(extras)}]"
        own = self._own()
        if "llama" in extras:
            self._llama()
        if not self.offline:
            self.progress.message("Asking the package index what is needed.")
        return self._resolve([f"{wanted} @ {own.as_uri()}" if own else f"{wanted}=={__version__}", "pip"])

    def fetch(self, wheels: Iterable[Wheel], folder: Path) -> None:
        """Bring wheels into a folder. Raises HubError."""
        remote = []
        for wheel in wheels:
            if wheel.here:
                shutil.copyfile(wheel.here, folder / wheel.file)
            else:
                remote.append(wheel.pinned())
        if not remote:
            return
        options = ["--no-deps", *_WHEELS_ONLY, *self.machine.pip_options(), "--dest", str(folder)]
        try:
            self._pip("download", *options, *remote)
        except pip.PipFailed as failed:
            raise HubError(f"pip could not fetch the wheels: {failed}") from failed

    def _own(self) -> Path | None:
        """edgespec's own wheel, built, in a checkout; None: the user has one, or it is for the index."""
        source = checkout()
        if source is None or self._has("edgespec"):
            return None
        if self.offline:
            raise OfflineError(
                "Building edgespec's own wheel takes tools from the package index, and offline is asked for. "
                f"When online: pip wheel --no-deps --wheel-dir wheels {source}; then add --wheels wheels"
            )
        kernels = (
            "with its kernels" if self.machine.here else "without its kernels, which it compiles for here"
        )
        self.progress.message(
            f"Building edgespec's own wheel from {source}, {kernels}. pip fetches what builds it: "
            "scikit-build-core, and CMake and Ninja where they are missing."
        )
        return self._build(str(source), {} if self.machine.here else {"EDGESPEC_NATIVE": "0"})

    def _llama(self) -> None:
        """Build llama.cpp's wheel if there is none, and if it can be built for that machine."""
        if self._has(LLAMA) or (not self.offline and self._offered(LLAMA)):
            return
        remedy = (
            f"Make one there (pip wheel --no-deps {LLAMA}) and name its folder: --wheels FOLDER. Only ONNX "
            "models that were not converted from GGUF do without it (--backend onnx)"
        )
        if self.offline:
            raise OfflineError(
                f"There is no wheel of {LLAMA} in --wheels, and offline is asked for. {remedy}"
            )
        if not self.machine.here:
            raise UsageError(
                f"{LLAMA} has no wheel for {self.machine} in the package index, and can be built here for "
                f"machines like this one only. {remedy}"
            )
        self.progress.message(
            f"{LLAMA} has no wheel in the package index: pip fetches its source and builds it for this "
            "processor, with the options in CMAKE_ARGS. That takes some minutes."
        )
        self._build(LLAMA)

    def _build(self, what: str, environment: Mapping[str, str] | None = None) -> Path:
        before = set(self.built.iterdir())
        try:
            self._pip("wheel", "--no-deps", "--wheel-dir", str(self.built), what, environment=environment)
        except pip.PipFailed as failed:
            raise HubError(
                f"{what} cannot be built: {failed}. It takes a C++ compiler; pip wheel --no-deps {what} "
                "shows all that is said"
            ) from failed
        (wheel,) = set(self.built.iterdir()) - before
        return wheel

    def _has(self, name: str) -> bool:
        """Whether a wheel of this package is in the user's folders."""
        return any(_package(file) == name for folder in self.folders for file in folder.glob("*.whl"))

    def _offered(self, name: str) -> bool:
        try:
            self._report([name], "--no-deps")
        except pip.PipFailed as failed:
            if "No matching distribution" in failed.said:
                return False
            raise HubError(f"The package index cannot be asked for {name}: {failed}") from failed
        return True

    def _resolve(self, requirements: list[str]) -> list[Wheel]:
        """pip's choice. Conditions of requirements it takes as they are here, so that what is missing there
        is asked for until nothing is."""
        while True:
            try:
                wheels = self._report(requirements)
            except pip.PipFailed as failed:
                raise self._unresolved(failed) from failed
            if self.machine.as_pip_does:
                return wheels
            missing = lacking(wheels, Requirement(requirements[0]), self.machine.environment())
            new = sorted(missing - set(requirements))
            if not new:
                return wheels
            requirements = [*requirements, *new]

    def _report(self, requirements: Sequence[str], *options: str) -> list[Wheel]:
        """What pip would install."""
        with tempfile.TemporaryDirectory(dir=self.built.parent) as folder:
            report = Path(folder) / "report.json"
            arguments = ["--dry-run", "--ignore-installed", "--report", str(report), *_WHEELS_ONLY]
            # A folder to install to is asked for where wheels of other machines are.
            arguments += ["--target", f"{folder}/none", "--prefer-binary", *self.machine.pip_options()]
            self._pip("install", *arguments, *options, *requirements)
            return [Wheel.of_report(chosen) for chosen in json.loads(report.read_text("utf-8"))["install"]]

    def _unresolved(self, failed: pip.PipFailed) -> HubError:
        if "no such option" in failed.said:
            return HubError("pip is too old for this: python -m pip install --upgrade pip")
        if "distribution found for edgespec" in str(failed):
            return HubError(
                f"There is no wheel of edgespec {__version__} for {self.machine}. Run this from a checkout, "
                "or make the wheel in one (pip wheel --no-deps .) and name its folder: --wheels FOLDER"
            )
        where = "--wheels" if self.offline else "the package index"
        return HubError(
            f"Not all that edgespec needs is a wheel in {where} for {self.machine}: {failed}. Try a "
            "--platform with a newer glibc, or another --extra; or make what is missing there, and name its "
            "folder: --wheels FOLDER"
        )

    def _pip(self, command: str, *arguments: str, environment: Mapping[str, str] | None = None) -> None:
        """Run pip with these places. Offline, neither its index nor its settings count."""
        places = [part for folder in (self.built, *self.folders) for part in ("--find-links", str(folder))]
        given = dict(environment or {})
        if self.offline:
            places = ["--isolated", "--no-index", *places]
            given["PIP_CONFIG_FILE"] = os.devnull
        pip.run([command, *places, *arguments], self.built.parent, environment=given)


def checkout() -> Path | None:
    """The source that this edgespec runs from, if it does."""
    root = Path(__file__).parents[2]
    return root if (root / "pyproject.toml").is_file() and (root / "models/catalog.toml").is_file() else None


def _package(file: Path) -> str | None:
    try:
        return parse_wheel_filename(file.name)[0]
    except InvalidWheelFilename:
        return None
