from pathlib import Path

import pytest
from pydantic import ValidationError

from llm4llm.errors import BadSettings
from llm4llm.settings import load_settings


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LLM4LLM_HOME", str(tmp_path))
    for name in ("DATABASE_URL", "BLOB_ROOT", "LOG_LEVEL"):
        monkeypatch.delenv(f"LLM4LLM_{name}", raising=False)
    return tmp_path


def test_everything_lies_in_the_home_folder_by_default(home: Path) -> None:
    settings = load_settings()
    assert settings.home == home
    assert settings.database == f"sqlite:///{home}/llm4llm.sqlite3"
    assert settings.blobs == home / "blobs"


def test_files_may_lie_in_another_folder_or_in_a_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLM4LLM_BLOB_ROOT", "/srv/blobs")
    assert load_settings().blobs == Path("/srv/blobs")
    monkeypatch.setenv("LLM4LLM_BLOB_ROOT", "s3://bucket/prefix")
    assert load_settings().blobs == "s3://bucket/prefix"


def test_the_home_folder_has_a_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("LLM4LLM_HOME")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))
    assert load_settings().home == tmp_path / "share" / "llm4llm"


def test_a_relative_home_is_fixed_when_it_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LLM4LLM_HOME", "here")
    assert load_settings().home == tmp_path / "here"


def test_the_environment_wins_over_the_file(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "settings.toml").write_text('log_level = "debug"\ndatabase_url = "sqlite:///elsewhere.sqlite3"\n')
    monkeypatch.setenv("LLM4LLM_LOG_LEVEL", "error")
    settings = load_settings()
    assert settings.log_level == "error"
    assert settings.database == "sqlite:///elsewhere.sqlite3"


def test_settings_are_frozen() -> None:
    with pytest.raises(ValidationError):
        load_settings().log_level = "info"  # type: ignore[misc]


def test_a_bad_value_names_its_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLM4LLM_LOG_LEVEL", "loud")
    with pytest.raises(BadSettings, match=r"LLM4LLM_LOG_LEVEL: input should be 'debug'"):
        load_settings()


def test_a_broken_file_is_named(home: Path) -> None:
    (home / "settings.toml").write_text("log_level = \n")
    with pytest.raises(BadSettings, match=r"settings\.toml is not valid TOML"):
        load_settings()
