"""Finds the data folders that ship with the package: agents, profiles, patches, migrations."""

import os
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

import llm4llm
from llm4llm.errors import AssetsMissing, UnknownTarget
from llm4llm.schema.target import TargetProfile

_FOLDERS = ("agents", "profiles", "patches", "migrations")
_PACKAGE = Path(llm4llm.__file__).resolve().parent
AUTO = "auto"


@dataclass(frozen=True)
class Seed:
    """A curated candidate file in patches/<name>/."""

    name: str
    path: Path


@dataclass(frozen=True)
class AgentRole:
    """A folder in agents/ with the file agent.toml that describes it."""

    name: str
    path: Path
    description: str
    limits: dict[str, float]


def assets_dir() -> Path:
    """LLM4LLM_ASSETS_DIR if set, else the folder inside an installed package, else the checkout; AssetsMissing if none has them."""
    named = os.environ.get("LLM4LLM_ASSETS_DIR")
    places = [Path(named)] if named else [_PACKAGE / "_assets", _PACKAGE.parent]
    for place in places:
        if all((place / folder).is_dir() for folder in _FOLDERS):
            return place.absolute()
    looked = " and ".join(map(str, places))
    raise AssetsMissing(f"the folders {', '.join(_FOLDERS)} are not in {looked}", "install llm4llm again or correct LLM4LLM_ASSETS_DIR")


def migrations_dir() -> Path:
    """The folder of database migrations."""
    return assets_dir() / "migrations"


def corpus_dir() -> Path:
    """The folder of candidates with known answers that the judge is tried on."""
    places = [assets_dir() / "judge_corpus", _PACKAGE.parent / "tests" / "judge_corpus"]
    for place in places:
        if place.is_dir():
            return place
    raise AssetsMissing(f"the judge's corpus is not in {places[0]}", "install llm4llm again, or name a folder with --corpus")


def seeds() -> tuple[Seed, ...]:
    """Every patches/<name>/candidate.py, by name."""
    files = sorted((assets_dir() / "patches").glob("*/candidate.py"))
    return tuple(Seed(file.parent.name, file) for file in files)


def agent_roles() -> tuple[AgentRole, ...]:
    """Every agents/<name>/agent.toml, by name."""
    roles = []
    for file in sorted((assets_dir() / "agents").glob("*/agent.toml")):
        facts = _toml(file)
        roles.append(AgentRole(file.parent.name, file.parent, str(facts.get("description", "")), dict(facts.get("limits", {}))))
    return tuple(roles)


def target_profiles() -> tuple[TargetProfile, ...]:
    """Every profiles/<name>.toml, by name."""
    profiles = []
    for file in sorted((assets_dir() / "profiles").glob("*.toml")):
        try:
            profiles.append(TargetProfile.model_validate({"name": file.stem, **_toml(file)}))
        except ValidationError as error:
            raise AssetsMissing(f"{file} is not a target profile ({error.errors()[0]['msg']})", "install llm4llm again") from error
    return tuple(profiles)


def target_profile(name: str) -> TargetProfile:
    """The profile of that name; UnknownTarget lists the known ones."""
    profiles = {profile.name: profile for profile in target_profiles()}
    if name not in profiles:
        raise UnknownTarget(name, tuple(profiles))
    return profiles[name]


def target_for(gpu: str | None, capability: str | None) -> TargetProfile:
    """The profile of a machine: by the GPU's name ("NVIDIA H200"), then by its capability ("9.0"), then one without a datasheet.

    A machine without a GPU gets `cpu`.
    """
    profiles = target_profiles()
    if gpu is None:
        return target_profile("cpu")
    words = gpu.upper().replace("-", " ").split()
    number = None if capability is None else int(capability.replace(".", ""))
    for profile in profiles:
        if profile.device == "cuda" and any(part.upper() in words for part in profile.matches):
            return profile
    if number is None:
        raise UnknownTarget(gpu, tuple(profile.name for profile in profiles))
    known = [profile for profile in profiles if profile.capability == number]
    limits = {"shared_bytes_per_block": known[0].shared_bytes_per_block, "registers_per_thread": 255} if known else {}
    name = f"sm_{number}"
    return TargetProfile(
        name=name, device="cuda", capability=number, source=f"capability of {gpu}; no datasheet is shipped for it", **limits
    )


def resolve_target(name: str, gpu: str | None, capability: str | None) -> TargetProfile:
    """`auto` is the machine's own profile; any other name must be a shipped one."""
    return target_for(gpu, capability) if name == AUTO else target_profile(name)


def _toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise AssetsMissing(f"{file} can't be read ({error})", "install llm4llm again") from error
