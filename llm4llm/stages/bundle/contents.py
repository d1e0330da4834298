"""What goes into a bundle, and the manifest that is made of it."""

from dataclasses import dataclass, field
from typing import Any

import llm4llm
from llm4llm.kit import Source, SourceRefused, read_source
from llm4llm.schema.acceptance import Acceptance, Patch, Trialled
from llm4llm.schema.capture import Root
from llm4llm.schema.environment import Environment
from llm4llm.schema.measurement import Paired
from llm4llm.schema.verdict import Passed
from llm4llm.stages.bundle.words import domain_in_words

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Contents:
    """Everything that a bundle is made of. `candidates`: file content by candidate sha256; `verdicts`: by candidate id."""

    acceptance: Acceptance
    environment: Environment
    roots: tuple[Root, ...]
    candidates: dict[str, bytes]
    verdicts: dict[str, Passed] = field(default_factory=dict)
    origin: dict[str, Any] = field(default_factory=dict)  # job, script and its hash: where the bundle comes from


def manifest_of(contents: Contents) -> dict[str, Any]:
    """The manifest without its list of files. Raises KeyError if a patch's root or candidate file is not among the contents."""
    fingerprints = {root.id: root.fingerprint for root in contents.roots}
    used = {fingerprints[patch.root] for patch in contents.acceptance.kept}
    models = {root.fingerprint: _model(root) for root in contents.roots if root.fingerprint in used}
    return {
        "schema_version": SCHEMA_VERSION,
        "made_by": {"name": "llm4llm", "version": llm4llm.__version__},
        "origin": contents.origin,
        "environment": contents.environment.model_dump(mode="json", exclude={"target"}),
        "target": contents.environment.target,
        "models": list(models.values()),
        "patches": [_patch(patch, fingerprints[patch.root], contents) for patch in contents.acceptance.kept],
        "evidence": {
            "decision": contents.acceptance.reason.model_dump(mode="json"),
            "in_model": _trial(contents.acceptance.together),
            "fresh_process": _trial(contents.acceptance.fresh_process),
        },
    }


def patch_file(patch: Patch) -> str:
    """Where a patch's candidate lies in the archive."""
    return f"patches/{patch.candidate_sha256[:32]}.py"


def _model(root: Root) -> dict[str, Any]:
    facts = root.model_dump(mode="json", include={"module_class", "fingerprint", "parameters", "devices", "dtypes", "config_sha256"})
    return {"config_sha256": None, **facts}


def _patch(patch: Patch, fingerprint: str, contents: Contents) -> dict[str, Any]:
    source = _read(contents.candidates[patch.candidate_sha256])
    return {
        "name": patch.candidate,
        "file": patch_file(patch),
        "sha256": patch.candidate_sha256,
        "hypothesis": source.docstring,
        "root_fingerprint": fingerprint,
        "module_class": patch.module_class,
        "phase": patch.phase,
        "family": patch.family,
        "paths": list(patch.paths),
        "config": patch.config,
        "needs_triton": "triton" in source.imports,
        "devices": _devices(patch.proven_domain),
        "proven_domain": patch.proven_domain,
        "guards": domain_in_words(patch.proven_domain),
        "evidence": _evidence(patch, contents),
    }


def _read(candidate: bytes) -> Source:
    """A candidate that can't be read says nothing of itself; the judge let it pass, so it runs."""
    try:
        return read_source(candidate)
    except SourceRefused:
        return Source(docstring="", imports=frozenset(), strings={})


def _devices(domain: dict[str, Any]) -> list[str]:
    """Types of device that the module itself was proven on."""
    facts = [fact for one in domain.get("alternatives", ()) for _, fact in one["slots"] if fact["kind"] == "tensor" and fact["here"]]
    return sorted({fact["device"] for fact in facts})


def _evidence(patch: Patch, contents: Contents) -> dict[str, Any]:
    verdict = contents.verdicts.get(patch.candidate)
    trials = [trial for trial in contents.acceptance.trials if trial.patches == (patch.candidate,) and trial.timing is not None]
    judged = None
    if verdict is not None:
        judged = {"reason": verdict.reason, "language": verdict.language, "gates": list(verdict.gates), "timing": _timing(verdict.timing)}
    return {"judge": judged, "in_model": _trial(trials[-1] if trials else None)}


def _trial(trial: Trialled | None) -> dict[str, Any] | None:
    if trial is None:
        return None
    sites = {name: [site.model_dump(mode="json") for site in found] for name, found in trial.sites.items()}
    return {
        "decision": trial.decision,
        "reason": trial.reason.model_dump(mode="json"),
        "checks": [check.model_dump(mode="json") for check in trial.checks],
        "hits": {name: sum(site["hits"] for site in found) for name, found in sites.items()},
        "sites": sites,
        "timing": _timing(trial.timing),
    }


def _timing(timing: Paired | None) -> dict[str, Any] | None:
    return None if timing is None else timing.model_dump(mode="json")
