"""The start script of a bundle, and its README.txt."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from importlib import resources

from edgespec import __version__
from edgespec.bundle.machine import Machine
from edgespec.bundle.models import Bundled, Models


def start_script(machine: Machine, backend: str, models: Models, extras: Sequence[str], pip: str) -> str:
    """start.sh, for this bundle; `pip`: the file name of its wheel."""
    draft = models.draft.name if isinstance(models.draft, Bundled) else models.draft or ""
    values = {
        "PYTHON": machine.python,
        "SYSTEM": machine.system,
        "PROCESSOR": machine.processor,
        "REQUIREMENT": f"edgespec[{','.join(extras)}]=={__version__}",
        "PIP": pip,
        "MODEL": models.target.name,
        "DRAFT": draft,
        "BACKEND": backend,
    }
    script = resources.files("edgespec.bundle").joinpath("start.sh").read_text("utf-8")
    for name, value in values.items():
        script = script.replace(f"'@{name}@'", shlex.quote(value))
    return script


def readme(name: str, machine: Machine, models: Models) -> str:
    """What the folder is, how to use it, and whose the models are."""
    licences = []
    for model in models.all:
        licences.append(f"  {model.title}: {model.licence}")
        if model.notice:
            licences.append(f"    {model.notice}")
    lines = [
        f"edgespec {__version__} with {name}, for {machine}. It needs no network.",
        "",
        "  sh start          a conversation; the first time it installs itself into this folder",
        "  sh start help     what else there is",
        "",
        "The models and their licences:",
        *licences,
        "",
        "Each wheel holds the licence of its package. Who passes this folder on passes on all of it, and",
        "some licences ask for their text to go along.",
    ]
    return "\n".join(lines) + "\n"
