"""What `python -m tests.gpu.day --dry` cannot show: settings only for a card."""

from tests.benchmarks import estimates, memory_grid_cases
from tests.gpu.experiments import EXPERIMENTS
from tui_trainer.config.load import Request
from tui_trainer.launching.open_run import load_config


def test_an_experiment_uses_settings_and_configurations_that_exist():
    for name, one in EXPERIMENTS.items():
        pairs = tuple(f"{key.replace('__', '.')}={value}" for key, value in one.settings.items())
        load_config(Request(assignments=pairs, profile="finetune"), gpu="none")
        kind, _, case = name.partition(": ")
        if cases := {"memory": memory_grid_cases.CASES, "time": estimates.CASES}.get(kind):
            assert sum(case in configuration.name for configuration in cases) == 1, name
