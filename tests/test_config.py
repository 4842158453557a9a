"""Settings: precedence, presets, and errors that name the nearest known key."""

from __future__ import annotations

from pathlib import Path

import pytest

from arr_stream.config import Settings
from arr_stream.errors import InvalidSetting, PresetNotFound, SettingsError, UnknownSetting

PRESETS = sorted((Path(__file__).parent.parent / "pipelines").glob("*.toml"))


@pytest.mark.parametrize("preset", PRESETS, ids=lambda path: path.stem)
def test_presets_hold_only_what_differs_from_the_defaults(preset: Path) -> None:
    loaded, defaults = Settings.load(preset).model_dump(), Settings().model_dump()
    assert loaded != defaults
    import tomllib

    for section, values in tomllib.loads(preset.read_text()).items():
        for name in values:
            assert loaded[section][name] != defaults[section][name], f"{section}.{name} is the default"


def test_overrides_win_over_the_preset_and_the_preset_over_defaults(tmp_path: Path) -> None:
    preset = tmp_path / "p.toml"
    preset.write_text("[keyframes]\ninterval = 7\ncluster_count = 9\n")
    settings = Settings.load(preset, ["keyframes.interval=5", "selection.budget=10%"])
    assert settings.keyframes.interval == 5
    assert settings.keyframes.cluster_count == 9
    assert settings.selection.budget == "10%"
    assert settings.keyframes.text == Settings().keyframes.text


@pytest.mark.parametrize(
    ("override", "nearest"),
    [("keyframes.intervall=3", "keyframes.interval"), ("video.cfr=3", "video.crf"), ("scoring=1", "scoring.")],
)
def test_unknown_keys_name_the_nearest(override: str, nearest: str) -> None:
    with pytest.raises(UnknownSetting, match=nearest):
        Settings.load(None, [override])


@pytest.mark.parametrize("override", ["keyframes.interval=0", "keyframes.interval=often", "video.crf=99", "interval"])
def test_impossible_values_are_refused(override: str) -> None:
    with pytest.raises(InvalidSetting):
        Settings.load(None, [override])


def test_a_preset_that_is_not_there_or_not_toml(tmp_path: Path) -> None:
    (tmp_path / "realtime.toml").write_text("= nonsense")
    with pytest.raises(PresetNotFound, match=r"realtime\.toml"):
        Settings.load(tmp_path / "realtme.toml")
    with pytest.raises(PresetNotFound, match="TOML"):
        Settings.load(tmp_path / "realtime.toml")


def test_live_pictures_are_chosen_from_unless_a_budget_says_otherwise() -> None:
    assert Settings().for_live().selection.budget == "25%"
    assert Settings().with_values({"selection.budget": "40"}).for_live().selection.budget == "40"


def test_a_preset_may_include_others(tmp_path: Path) -> None:
    (tmp_path / "tuned.toml").write_text("[scoring]\nmotion = 0.9\nsaliency = 0.1\n")
    (tmp_path / "own.toml").write_text('include = ["tuned.toml", "surveillance"]\n[scoring]\nmotion = 0.8\n')
    settings = Settings.load(tmp_path / "own.toml")
    assert (settings.scoring.motion, settings.scoring.saliency) == (0.8, 0.1)
    assert settings.selection.novelty == "skip"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('include = "own.toml"', "own.toml: included, and includes others"),
        ("include = 3", "include=3"),
        ('include = "absent.toml"', "absent.toml: no such preset"),
    ],
)
def test_includes_that_cannot_be(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "own.toml").write_text(text)
    with pytest.raises(SettingsError, match=said):
        Settings.load(tmp_path / "own.toml")


@pytest.mark.parametrize("override", ["vlm.endpiont=http://me:hunter2@host/v1", "vlm.fps=http://me:hunter2@host/v1"])
def test_wrong_settings_show_no_password(override: str) -> None:
    with pytest.raises(SettingsError) as caught:
        Settings.load(None, [override])
    assert "***" in str(caught.value) and "hunter2" not in str(caught.value)
