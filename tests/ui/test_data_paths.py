"""A path of data that is typed and completed in the Config screen, and the splits that are chosen beside it."""

from __future__ import annotations

import pytest

from tests.tasks.test_splits import LAYOUTS, at_home, marks  # noqa: F401  # the fixture is looked up by its name
from tests.ui.test_config_model import opened
from tui_trainer.config.load import Request
from tui_trainer.config.sections import Config
from tui_trainer.data.sources.hub import names_in_the_cache
from tui_trainer.launching.start import load_config
from tui_trainer.tasks.parts.learns_from_data import sources_of
from tui_trainer.ui.screens.config_model import ConfigModel


def put(model: ConfigModel, key: str, text: str, *, completed: bool = False) -> None:
    editor = model.edit(key)
    editor.typed(text)
    if completed:
        editor.complete()
    assert model.take(editor), editor.error


def config_of(model: ConfigModel) -> Config:
    """What a run that is started from this screen gets."""
    own = model.document.own_values()
    return load_config(Request(assignments=tuple(f"{key}={value}" for key, value in own.items()))).config


def first_words(source) -> set[str]:
    return {document.text.partition(":")[0] for document in source.documents()}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_path_that_is_picked_trains_on_train_and_evaluates_on_validation(layout, at_home):  # noqa: F811
    make, path, settings = LAYOUTS[layout]
    make(at_home / "corpus")
    model = opened()
    model.names = {"data.path": names_in_the_cache()}
    put(model, "data.path", path if "stored" in path else path[:5], completed="stored" not in path)
    for key, value in settings.items():
        put(model, key.replace("__", "."), value)
    source, held_out = sources_of(config_of(model))
    train = {f"train-{n}" for n in range(4)} if settings else marks("train")
    assert (first_words(source), first_words(held_out)) == (train, marks("validation"))
    put(model, "data.split", "validation[:50%]")
    put(model, "data.eval_split", "validation[50%:]")
    source, held_out = sources_of(config_of(model))
    assert (first_words(source), first_words(held_out)) == (
        {"validation-0", "validation-1"},
        {"validation-2", "validation-3"},
    )


def test_data_sets_in_the_cache_are_offered(at_home):  # noqa: F811
    for name in ("datasets--org--conversations", "datasets--tweet_eval", "models--org--conversations"):
        (at_home / "hf/hub" / name).mkdir(parents=True)
    assert names_in_the_cache() == ["org/conversations", "tweet_eval"]
