"""Which hardware profile matches which machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from tui_trainer.config.toml_files import Profile, find_profile
from tui_trainer.errors import ConfigError
from tui_trainer.planning.hardware_match import choose_hardware_profile, why_it_matches


def profile(**match):
    return Profile(name="p", kind="hardware", path=Path("p.toml"), title="", summary="", source="", match=match)


def test_the_cpu_profile_matches_a_machine_that_trains_on_its_processor(machine, gpu):
    cpu = find_profile("cpu", "hardware")
    assert why_it_matches(cpu, machine()) == "trains on the CPU (Test CPU, 8 cores)"
    assert why_it_matches(cpu, machine(gpus=(gpu(),)), device="cpu")
    assert why_it_matches(cpu, machine(gpus=(gpu(),)), device="cuda") == ""
    assert choose_hardware_profile("auto", machine())[0].name == "cpu"
    assert choose_hardware_profile("none", machine()) == (None, 'hardware_profile = "none"')
    assert choose_hardware_profile("cpu", machine())[1] == "chosen by name"


def test_a_gpu_profile_needs_a_gpu_that_is_trained_on_and_reports_its_facts(machine, gpu):
    assert why_it_matches(profile(device="cuda"), machine(gpus=(gpu(),)), device="cpu") == ""
    assert why_it_matches(profile(device="cuda"), machine(), device="cuda") == ""
    silent = gpu(name=None, capability=None, memory_bytes=None)
    asked = ({"name": "*"}, {"capability_at_least": "5.0"}, {"capability_below": "99.0"}, {"memory_gib": [0, 1000]})
    for match in asked:
        assert why_it_matches(profile(device="cuda", **match), machine(gpus=(silent,)), silent, "cuda") == "", match


MATCHES = [
    ({}, True),
    ({"name": "*h200*"}, True),
    ({"name": ["*A100*", "*H2?0"]}, True),
    ({"name": "*A100*"}, False),
    ({"capability_at_least": "8.9"}, True),
    ({"capability_at_least": "10.0"}, False),
    ({"capability_below": "12.0"}, True),
    ({"capability_below": "9.1"}, True),
    ({"capability_below": "9.0"}, False),
    ({"capability_at_least": "8.9", "capability_below": "12.0"}, True),
    ({"capability_at_least": "8.0", "capability_below": "8.6"}, False),
    ({"cores_at_most": 8}, True),
    ({"cores_at_most": 7}, False),
    ({"memory_gib": [100, 150]}, True),
    ({"memory_gib": [20, 80]}, False),
    ({"name": "*H200*", "memory_gib": [20, 80]}, False),
]


def test_every_key_of_a_match_must_fit(machine, gpu, subtests):
    for match, fits in MATCHES:
        with subtests.test(str(match)):
            reason = why_it_matches(profile(device="cuda", **match), machine(gpus=(gpu(),)), gpu(), "cuda")
            assert bool(reason) == fits
            if "memory_gib" in match and fits:
                assert reason == "trains on NVIDIA H200, 141.0 GiB"
            if "capability_below" in match and fits:
                assert reason == "trains on NVIDIA H200, compute capability 9.0"
            if "cores_at_most" in match and fits:
                assert reason == "trains on NVIDIA H200, with 8 cores"


def test_a_cpu_profile_may_name_the_gpu_that_cannot_be_used(machine, gpu):
    old = gpu(name="Tesla K80", capability=(3, 7))
    named = profile(device="cpu", name=["*K80*", "*K40*"])
    beside = machine(gpus=(old,))
    why = "trains on the CPU (Test CPU, 8 cores), because Tesla K80 cannot be used"
    assert why_it_matches(named, beside, old, "cpu") == why
    assert why_it_matches(named, beside, None, "cpu") == why
    assert why_it_matches(named, beside, old, "cuda") == ""
    assert why_it_matches(named, machine(), None, "cpu") == ""
    assert why_it_matches(named, machine(gpus=(gpu(),)), gpu(), "cpu") == ""
    assert why_it_matches(named, machine(gpus=(gpu(name=None),)), None, "cpu") == ""


def test_a_cpu_profile_may_limit_the_cores(machine):
    small = profile(device="cpu", cores_at_most=2)
    assert why_it_matches(small, machine(usable_cores=1), device="cpu") == "trains on the CPU (Test CPU, 1 core)"
    assert why_it_matches(small, machine(usable_cores=3), device="cpu") == ""


DAMAGED = [
    ({}, "match.device"),
    ({"device": "gpu"}, 'device = "cuda"'),
    ({"device": "cuda", "memory": [1, 2]}, "match.memory: is not a valid key"),
    ({"device": "cpu", "memory_gib": [1, 2]}, "valid keys with device = 'cpu': name, cores_at_most"),
    ({"device": "cuda", "capability_below": "8"}, 'capability_below = "8.6"'),
    ({"device": "cuda", "capability_at_least": "8.0", "capability_below": "8.0"}, "greater than capability_at_least"),
    (
        {"device": "cuda", "capability_at_least": "10.0", "capability_below": "9.0"},
        "match.capability_below: is 9.0",
    ),
    ({"device": "cuda", "cores_at_most": 0}, "cores_at_most = 2"),
    ({"device": "cuda", "cores_at_most": True}, "match.cores_at_most"),
    ({"device": "cuda", "capability_at_least": 8.0}, "as text"),
    ({"device": "cuda", "memory_gib": [80, 20]}, "match.memory_gib"),
    ({"device": "cuda", "memory_gib": 80}, "match.memory_gib"),
    ({"device": "cuda", "name": [1]}, "match.name"),
]


def test_a_damaged_match_is_refused_with_its_file(machine, subtests):
    for match, words in DAMAGED:
        with subtests.test(str(match)):
            with pytest.raises(ConfigError) as caught:
                why_it_matches(profile(**match), machine())
            assert words in str(caught.value)
            assert "p.toml" in str(caught.value)


@pytest.fixture
def own_profiles(tmp_path, monkeypatch):
    """Return `own_profiles(name=text)`: it writes hardware profiles of the user beside the shipped ones."""
    folder = tmp_path / "settings" / "tui-trainer" / "profiles" / "hardware"
    folder.mkdir(parents=True)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))

    def write(**texts):
        for name, text in texts.items():
            (folder / f"{name}.toml").write_text(f'[match]\ndevice = "cuda"\n{text}\n')

    return write


def test_the_most_specific_profile_is_chosen_and_among_equals_the_users_own(machine, gpu, own_profiles):
    def chosen(**facts):
        profile, reason = choose_hardware_profile("auto", machine(gpus=(gpu(**facts),)))
        return profile.name, reason

    own_profiles(any="", mine='name = "*H200*"', other='name = "*A100*"\nmemory_gib = [1, 200]')
    assert chosen() == ("mine", "trains on NVIDIA H200")
    assert chosen(name="A card")[0] == "h100-h200"
    assert chosen(capability=None, name="A card")[0] == "any"
    own_profiles(equal='capability_at_least = "9.0"\ncapability_below = "9.1"')
    assert chosen(name="A card")[0] == "equal"
    own_profiles(misspelt='capabilty_at_least = "8.0"')
    with pytest.raises(ConfigError, match="capabilty_at_least"):
        chosen()
