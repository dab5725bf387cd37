"""From named models to drafters, and to the policy that decides about them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from edgespec.backends import speed
from edgespec.backends.base import Backend
from edgespec.backends.caches import Caches
from edgespec.backends.fingerprint import identity
from edgespec.backends.llama_cpp import LlamaCpp
from edgespec.backends.loading import Settings, choose, context_of, open_backend
from edgespec.control import priors
from edgespec.control.arms import Arm
from edgespec.control.controller import Controller
from edgespec.control.cost import CostCurve
from edgespec.control.lengths import Lengths
from edgespec.device.cores import machine
from edgespec.drafters.base import Drafter
from edgespec.drafters.compatibility import check_vocabularies
from edgespec.drafters.draft_model import DraftModel
from edgespec.drafters.ngram import NGram
from edgespec.errors import ModelError
from edgespec.hub import state
from edgespec.hub.gguf_info import read_info
from edgespec.hub.model_file import ModelFile

KEPT, COSTS = "controller.json", "costs.json"


def open_draft(file: ModelFile, target: Backend, backend: str, settings: Settings, advice: str) -> Backend:
    """Load a draft model for `target`. Raises IncompatiblePair with `advice` if it does not fit."""
    trained = context_of(file) or target.n_ctx
    n_ctx = min(target.n_ctx, trained)  # a draft with a shorter context only drafts less
    settings = replace(_drafting(settings), n_ctx=n_ctx)
    if backend == "auto":
        backend = choose(file, settings, depth=0)
    if backend == "onnx":  # which has no layers on a GPU: they are the target's, which took them
        settings = replace(settings, gpu_layers=None)
    model = open_backend(file, backend, settings, depth=0, drafts=True)
    try:
        check_vocabularies(target, model, advice)
    except BaseException:
        model.close()
        raise
    return model


def _drafting(settings: Settings) -> Settings:
    """What it drafts is verified: adapters and bitwise equality are the target's affair."""
    return replace(settings, lora=(), strict=False)


def controlled(
    target: Backend,
    target_file: ModelFile,
    draft: Caches | None,
    draft_file: ModelFile | None,
    settings: Settings,
) -> tuple[list[Drafter], Controller, Callable[[], None]]:
    """Drafters, the controller that chooses among them, and what writes down what it learned.

    Measures what passes cost here if that was never done with these files, which takes some seconds.
    """
    models = [identity(target_file.path), identity(draft_file.path) if draft_file else "-"]
    key = "/".join([machine(), *models, *map(identity, settings.lora)])
    found = state.read(KEPT).get(key)
    kept = found if isinstance(found, dict) else {}
    lookup = NGram()
    drafters: list[Drafter] = [lookup]
    looked_up = priors.recall(kept, lookup.name, priors.LOOKUP)
    arms = {lookup.name: Arm(looked_up)}
    costs: dict[str, CostCurve] = {}
    if draft is not None and draft_file is not None:
        curve = _curve(draft.backend, draft_file, _drafting(settings), costs)
        model = DraftModel(draft.backend, lookup, draft)
        drafters.insert(0, model)
        arms[model.name] = Arm(priors.recall(kept, model.name, priors.MODEL), curve, looked_up)
    curve, lengths = _curve(target, target_file, settings, costs), Lengths(kept.get("lengths"))
    controller = Controller(curve, arms, priors.recall_ledger(kept), lengths)

    def save() -> None:
        state.write(KEPT, state.read(KEPT) | {key: priors.keep(controller)})
        state.write(COSTS, state.read(COSTS) | {name: curve.as_dict() for name, curve in costs.items()})

    return drafters, controller, save


def _curve(model: Backend, file: ModelFile, settings: Settings, costs: dict[str, CostCurve]) -> CostCurve:
    """What passes of a model cost; also put into `costs`, by what it is kept by."""
    runtime = "llama.cpp" if isinstance(model, LlamaCpp) else "onnx"
    seconds = speed.pass_seconds(file.path, runtime, model, settings.threads, settings.conditions)
    points = {n: s for n, s in seconds.items() if s > 0.0} or {1: 0.01}  # no room to measure: any start
    # Where several tokens seem cheaper than one, the machine was busy while that was measured. Too dear a
    # T(1) makes losses look like gains, until plain rounds show it: a short answer may have none.
    points[1] = min(points.values())
    name = f"{speed.key(file.path, runtime, settings.threads, settings.conditions)}/{runtime}"
    costs[name] = CostCurve(points, _per_context(file.path), state.read(COSTS).get(name))
    return costs[name]


def forget_costs() -> None:
    """Have passes of every model measured anew on this kind of machine when it is next loaded: what was
    measured while the machine was busy would stay. What texts have taught does."""
    for name in (speed.FILE, COSTS):
        known = state.read(name)
        others = {key: costs for key, costs in known.items() if not key.startswith(f"{machine()}/")}
        state.write(name, others)


def _per_context(path: Path) -> float:
    """What a token of context adds to a pass, as a share: bytes of its keys and values ÷ bytes of weights."""
    try:
        info = read_info(path)
    except (ModelError, OSError):  # an ONNX model
        return 0.0
    return (info.kv_bytes_per_token or 0) / max(info.bytes_per_token, 1)
