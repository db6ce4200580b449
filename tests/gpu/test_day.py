"""What `python -m tests.gpu.day --dry` cannot show: settings only for a card."""

from tests.gpu.calls import ITEMS
from tui_trainer.config.load import Request
from tui_trainer.launching.open_run import load_config


def test_an_item_uses_settings_that_exist():
    for item in ITEMS.values():
        pairs = tuple(f"{key.replace('__', '.')}={value}" for key, value in item.settings.items())
        load_config(Request(assignments=pairs, profile="finetune"), gpu="none")
