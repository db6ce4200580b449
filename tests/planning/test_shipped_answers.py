"""Shipped answers are those that the installed libraries give."""

import json
from pathlib import Path

import pytest

from tests.ship_answers import ask
from tui_trainer.models import counting as answers

pytestmark = pytest.mark.dry_run


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_shipped_answers_are_those_of_the_installed_libraries():
    shipped = json.loads(Path(answers.__file__).with_name("shipped_answers.json").read_text("utf-8"))
    assert dict(ask({})) == shipped
