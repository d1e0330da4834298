from pathlib import Path

import pytest

from llm4llm import assets
from llm4llm.errors import AssetsMissing, UnknownTarget


def test_the_shipped_profiles_hold_their_limits() -> None:
    profiles = {profile.name: profile for profile in assets.target_profiles()}
    assert set(profiles) >= {"cpu", "a100", "h100", "h200"}
    assert (profiles["a100"].capability, profiles["a100"].shared_bytes_per_block) == (80, 163 * 1024)
    for name in ("h100", "h200"):
        assert (profiles[name].capability, profiles[name].shared_bytes_per_block) == (90, 227 * 1024)
    for profile in profiles.values():
        assert profile.source
        if profile.device == "cuda":
            assert profile.registers_per_thread == 255
            assert profile.memory_bandwidth_bytes_s is not None
            assert profile.peak_flops["bfloat16"] > profile.peak_flops["float32"]


@pytest.mark.parametrize(
    ("gpu", "capability", "name"),
    [
        (None, None, "cpu"),
        ("NVIDIA H200", "9.0", "h200"),
        ("NVIDIA H100 80GB HBM3", "9.0", "h100"),
        ("NVIDIA A100-SXM4-80GB", "8.0", "a100"),
        ("NVIDIA Some New Card", "9.0", "sm_90"),
        ("NVIDIA Some New Card", "12.0", "sm_120"),
    ],
)
def test_a_machine_finds_its_target(gpu: str | None, capability: str | None, name: str) -> None:
    profile = assets.target_for(gpu, capability)
    assert profile.name == name
    assert profile.device == ("cpu" if gpu is None else "cuda")


def test_a_card_without_a_datasheet_claims_no_peaks() -> None:
    profile = assets.target_for("NVIDIA Some New Card", "9.0")
    assert profile.peak_flops == {}
    assert profile.memory_bandwidth_bytes_s is None
    assert profile.shared_bytes_per_block == 227 * 1024


def test_a_named_target_must_exist() -> None:
    assert assets.resolve_target("h100", None, None).name == "h100"
    assert assets.resolve_target("auto", None, None).name == "cpu"
    with pytest.raises(UnknownTarget, match="auto or one of: a100, cpu, h100, h200"):
        assets.resolve_target("b9000", None, None)


def test_the_seeds_agent_is_shipped() -> None:
    roles = {role.name: role for role in assets.agent_roles()}
    assert roles["seeds"].description
    assert roles["seeds"].limits["trials_per_task"] >= 1


def test_another_folder_can_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("agents", "profiles", "migrations", "patches/second", "patches/first", "patches/no_candidate"):
        (tmp_path / folder).mkdir(parents=True)
    for name in ("first", "second"):
        (tmp_path / "patches" / name / "candidate.py").write_text("")
    monkeypatch.setenv("LLM4LLM_ASSETS_DIR", str(tmp_path))
    assert assets.assets_dir() == tmp_path
    assert [seed.name for seed in assets.seeds()] == ["first", "second"]
    assert assets.target_profiles() == ()


def test_missing_folders_and_broken_files_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLM4LLM_ASSETS_DIR", str(tmp_path))
    with pytest.raises(AssetsMissing, match=str(tmp_path)):
        assets.assets_dir()
    for folder in ("agents", "profiles", "migrations", "patches"):
        (tmp_path / folder).mkdir()
    (tmp_path / "profiles" / "odd.toml").write_text('device = "toaster"\nsource = ""\n')
    with pytest.raises(AssetsMissing, match=r"odd\.toml"):
        assets.target_profiles()
    (tmp_path / "profiles" / "odd.toml").write_text("device = ")
    with pytest.raises(AssetsMissing, match=r"odd\.toml"):
        assets.target_profiles()
