"""The schema of manifest.json, version 1: what `verify` holds a bundle to, and what another tool may rely on."""

from typing import Annotated, Any, Literal

from pydantic import StringConstraints

from llm4llm.schema.base import Frozen
from llm4llm.schema.profile import Phase

Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


class MadeBy(Frozen):
    name: str
    version: str


class ManifestModel(Frozen):
    """A model that the bundle is for."""

    module_class: str
    fingerprint: str
    config_sha256: str | None
    parameters: int
    devices: tuple[str, ...]
    dtypes: tuple[str, ...]


class ManifestPatch(Frozen):
    """A candidate file, where it goes, and the calls that it takes."""

    name: str
    file: Annotated[str, StringConstraints(pattern=r"^patches/[A-Za-z0-9_]+\.py$")]
    sha256: Sha256
    hypothesis: str
    root_fingerprint: str
    module_class: str
    phase: Phase
    family: str
    paths: tuple[str, ...]
    config: dict[str, Any]
    needs_triton: bool
    devices: tuple[str, ...]
    proven_domain: dict[str, Any]
    guards: tuple[str, ...]
    evidence: dict[str, Any]


class Manifest(Frozen):
    """manifest.json."""

    schema_version: Literal[1]
    made_by: MadeBy
    origin: dict[str, Any]
    environment: dict[str, Any]
    target: str
    models: tuple[ManifestModel, ...]
    patches: tuple[ManifestPatch, ...]
    evidence: dict[str, Any]
    runtime_modules: tuple[Annotated[str, StringConstraints(pattern=r"^[a-z_]+$")], ...]
    files: dict[str, Sha256]
