"""Which hardware profile suits which machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from tui_trainer.config.profiles import Profile, find_profile
from tui_trainer.errors import ConfigError
from tui_trainer.planning.hardware_match import choose_hardware_profile, why_it_matches


def profile(**match):
    return Profile(name="p", kind="hardware", path=Path("p.toml"), title="", summary="", source="", match=match)


def test_the_cpu_profile_matches_a_machine_that_trains_on_its_processor(machine, gpu):
    cpu = find_profile("cpu", "hardware")
    assert why_it_matches(cpu, machine()) == "trains on the CPU (Test CPU, 8 cores)"
    assert why_it_matches(cpu, machine(gpus=(gpu(),)))
    assert why_it_matches(cpu, machine(gpus=(gpu(),)), device="cuda") == ""
    assert choose_hardware_profile("auto", machine())[0].name == "cpu"
    assert choose_hardware_profile("none", machine()) == (None, 'hardware_profile = "none"')
    assert choose_hardware_profile("cpu", machine())[1] == "chosen by name"


def test_a_profile_of_a_card_waits_until_training_runs_on_cards(machine, gpu):
    assert why_it_matches(profile(device="cuda"), machine(gpus=(gpu(),))) == ""
    assert why_it_matches(profile(device="cuda"), machine(), device="cuda") == ""


@pytest.mark.parametrize(
    ("match", "fits"),
    [
        ({}, True),
        ({"name": "*h200*"}, True),
        ({"name": ["*A100*", "*H2?0"]}, True),
        ({"name": "*A100*"}, False),
        ({"capability_at_least": "8.9"}, True),
        ({"capability_at_least": "10.0"}, False),
        ({"memory_gib": [100, 150]}, True),
        ({"memory_gib": [20, 80]}, False),
        ({"name": "*H200*", "memory_gib": [20, 80]}, False),
    ],
)
def test_every_key_must_fit_the_card(machine, gpu, match, fits):
    reason = why_it_matches(profile(device="cuda", **match), machine(gpus=(gpu(),)), gpu(), "cuda")
    assert bool(reason) == fits
    if "memory_gib" in match and fits:
        assert reason == "trains on NVIDIA H200, 141.0 GiB"


def test_what_a_card_does_not_report_does_not_match(machine, gpu):
    silent = gpu(name=None, capability=None, memory_bytes=None)
    for match in ({"name": "*"}, {"capability_at_least": "5.0"}, {"memory_gib": [0, 1000]}):
        assert why_it_matches(profile(device="cuda", **match), machine(gpus=(silent,)), silent, "cuda") == ""


@pytest.mark.parametrize(
    ("match", "words"),
    [
        ({}, "match.device"),
        ({"device": "gpu"}, 'device = "cuda"'),
        ({"device": "cuda", "memory": [1, 2]}, "match.memory: is not known"),
        ({"device": "cpu", "name": "*"}, "takes nothing beside it"),
        ({"device": "cuda", "capability_at_least": 8.0}, "as text"),
        ({"device": "cuda", "memory_gib": [80, 20]}, "match.memory_gib"),
        ({"device": "cuda", "memory_gib": 80}, "match.memory_gib"),
        ({"device": "cuda", "name": [1]}, "match.name"),
    ],
)
def test_a_match_that_is_not_understood_is_an_error_with_its_file(machine, match, words):
    with pytest.raises(ConfigError) as caught:
        why_it_matches(profile(**match), machine())
    assert words in str(caught.value)
    assert "p.toml" in str(caught.value)


def test_a_users_own_profile_with_a_wrong_key_is_not_passed_over(machine, tmp_path, monkeypatch):
    folder = tmp_path / "settings" / "tui-trainer" / "profiles" / "hardware"
    folder.mkdir(parents=True)
    (folder / "mine.toml").write_text('[match]\ndevice = "cuda"\ncapabilty_at_least = "8.0"\n')
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    with pytest.raises(ConfigError, match="capabilty_at_least"):
        choose_hardware_profile("auto", machine())


def test_the_most_specific_of_several_is_taken(machine, gpu, tmp_path, monkeypatch):
    folder = tmp_path / "settings" / "tui-trainer" / "profiles" / "hardware"
    folder.mkdir(parents=True)
    (folder / "a-any.toml").write_text('[match]\ndevice = "cuda"\n')
    (folder / "b-mine.toml").write_text('[match]\ndevice = "cuda"\nname = "*H200*"\n')
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    from tui_trainer.planning import hardware_match

    monkeypatch.setattr(hardware_match, "training_device", lambda hardware, gpu: ("cuda", ""))
    chosen, why = choose_hardware_profile("auto", machine(gpus=(gpu(),)))
    assert (chosen.name, why) == ("b-mine", "trains on NVIDIA H200")
