"""What earlier runs measured helps the next estimate, and never spoils it."""

import pytest

from tui_trainer.planning.calibration import Calibration, keep_calibration, read_calibration

CPU = ("some processor", 2)


def keep(folder, shape, step_seconds, flops):
    keep_calibration(folder, *CPU, shape, step_seconds=step_seconds, flops=flops)


def test_the_same_shape_is_known_by_its_step_time(tmp_path):
    keep(tmp_path, "a", 0.5, 1e9)
    assert read_calibration(tmp_path, *CPU, "a", 1e9) == Calibration(step_seconds=0.5, flops_per_second=2e9)


def test_another_shape_takes_the_rate_of_the_most_similar_step(tmp_path):
    keep(tmp_path, "small", 0.1, 1e9)
    keep(tmp_path, "large", 1.0, 5e10)
    assert read_calibration(tmp_path, *CPU, "new", 4e10) == Calibration(flops_per_second=5e10)


def test_a_tiny_model_says_nothing_about_a_large_one(tmp_path):
    keep(tmp_path, "tiny", 0.005, 1e6)
    assert read_calibration(tmp_path, *CPU, "large", 1e12) == Calibration()


def test_another_machine_is_another_matter(tmp_path):
    keep(tmp_path, "a", 0.5, 1e9)
    assert read_calibration(tmp_path, "some processor", 4, "a", 1e9) == Calibration()


def test_precisions_of_one_machine_are_kept_apart(tmp_path):
    keep_calibration(tmp_path, *CPU, "a", step_seconds=0.5, flops=1e9, precision="bf16")
    assert read_calibration(tmp_path, *CPU, "a", 1e9) == Calibration()
    assert read_calibration(tmp_path, *CPU, "a", 1e9, precision="bf16").step_seconds == 0.5


def test_a_card_is_known_whatever_processor_it_sits_beside(tmp_path):
    keep_calibration(tmp_path, *CPU, "a", step_seconds=0.5, flops=1e9, card_name="some card")
    assert read_calibration(tmp_path, "another", 64, "a", 1e9, card_name="some card").step_seconds == 0.5
    assert read_calibration(tmp_path, *CPU, "a", 1e9) == Calibration()
    assert read_calibration(tmp_path, *CPU, "a", 1e9, card_name="another card") == Calibration()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{",
        b'{"some processor, 2 threads": 3}',
        b'{"some processor, 2 threads": {"a": 3, "b": {"flops": 0}}}',
    ],
)
def test_a_damaged_file_is_an_unmeasured_machine(tmp_path, content):
    (tmp_path / "calibration.json").write_bytes(content)
    assert read_calibration(tmp_path, *CPU, "a", 1e9) == Calibration()
    keep(tmp_path, "a", 0.5, 1e9)
    assert read_calibration(tmp_path, *CPU, "a", 1e9).step_seconds == 0.5
