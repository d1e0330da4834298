"""Settings from the environment and from <home>/settings.toml; the environment wins."""

import os
from pathlib import Path
from typing import Literal

import platformdirs
from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

from llm4llm.errors import BadSettings

_PREFIX = "LLM4LLM_"
FILE_NAME = "settings.toml"


def default_home() -> Path:
    """Where jobs, results and staged code are kept, unless LLM4LLM_HOME names another folder."""
    return Path(os.environ.get(f"{_PREFIX}HOME") or platformdirs.user_data_dir("llm4llm", appauthor=False)).expanduser().absolute()


class Settings(BaseSettings):
    """Everything that an installation may configure."""

    model_config = SettingsConfigDict(env_prefix=_PREFIX, frozen=True, extra="ignore", env_ignore_empty=True, validate_default=True)

    home: Path = Field(default_factory=default_home)
    database_url: str = ""  # SQLAlchemy URL; empty: SQLite in the home folder
    blob_root: str | None = None  # folder of stored files, or a bucket by its fsspec URL (s3://NAME/PREFIX); None: in the home folder
    log_level: Literal["debug", "info", "warning", "error"] = "warning"
    script_time_limit_s: float = Field(default=600.0, gt=0)  # one run of the user's script, at most; a job's budget may be less
    child_memory_bytes: int | None = Field(default=None, gt=0)  # None: 90 % of the machine's memory
    job_disk_bytes: int = Field(default=16 << 30, gt=0)  # all that an uploaded job's folder may hold while it runs
    candidate_memory_bytes: int | None = Field(default=None, gt=0)  # None: half of the machine's memory

    lease_s: float = Field(default=30.0, gt=0)  # after which a worker that says nothing counts as gone
    max_attempts: int = Field(default=3, gt=0)  # how often a job is taken up without a stage coming to its end

    @property
    def database(self) -> str:
        """The URL that the store opens."""
        return self.database_url or f"sqlite:///{self.home / 'llm4llm.sqlite3'}"

    require_keys: bool = False  # whether the service asks for API keys; without, it listens on loopback only
    max_upload_bytes: int = Field(default=64 << 20, gt=0)  # one request's body, whatever a key permits
    max_unpacked_bytes: int = Field(default=256 << 20, gt=0)  # all files of one job
    allow_network: bool = False  # whether an uploaded script may ask for the network
    allowed_environment: tuple[str, ...] = ()  # names of variables that an uploaded script may be given, besides the usual harmless ones

    @property
    def blobs(self) -> Path | str:
        """Where the store keeps files: a folder, or a bucket's URL."""
        if self.blob_root is None:
            return self.home / "blobs"
        return self.blob_root if "://" in self.blob_root else Path(self.blob_root)

    @property
    def private(self) -> tuple[Path, ...]:
        """Files and folders outside the home that jobs must not see: the database's files, and blobs in a folder of their own."""
        kept = []
        if self.blob_root is not None and ("://" not in self.blob_root or self.blob_root.startswith("file://")):
            kept.append(Path(self.blob_root.removeprefix("file://")).absolute())
        if self.database.startswith("sqlite:///"):
            file = self.database.removeprefix("sqlite:///")
            kept += [Path(file + suffix).absolute() for suffix in ("", "-wal", "-shm")]
        return tuple(kept)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Arguments, then the environment, then the file; no .env of the current folder, which belongs to the user's project."""
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls, default_home() / FILE_NAME)


def load_settings() -> Settings:
    """The settings of this process; BadSettings names each setting that can't be used and where it comes from."""
    try:
        settings = Settings()
    except ValidationError as error:
        faults = "; ".join(f"{_PREFIX}{'.'.join(map(str, fault['loc'])).upper()}: {fault['msg'].lower()}" for fault in error.errors())
        raise BadSettings(faults, f"correct the environment or {default_home() / FILE_NAME}") from error
    except ValueError as error:
        raise BadSettings(f"{default_home() / FILE_NAME} is not valid TOML ({error})", "correct the file") from error
    return settings.model_copy(update={"home": settings.home.expanduser().absolute()})
