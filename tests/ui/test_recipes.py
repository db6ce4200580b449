"""The offline recipe of each task, whole, by keys and without a screen: it beats what a counter reaches by its margin,
and plain transformers predicts with what it leaves. Minutes each, so they are asked for: `pytest -m slow -n 0 -s`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow
MOST_SECONDS = 900.0


@dataclass(frozen=True)
class Recipe:
    """`shown`: the metric as the result names it. `beats`: what the last evaluation reached is far enough from what a
    counter reaches."""

    name: str
    metric: str
    shown: str
    baseline: str
    beats: Callable[[float, float], bool]
    predicts: Callable[[Path], str]


def _loaded(kind: str, folder: Path) -> tuple[Any, Any]:
    """The model by a class of transformers of this name, and its tokenizer."""
    import transformers

    model = getattr(transformers, kind).from_pretrained(folder)
    return model.eval(), transformers.AutoTokenizer.from_pretrained(folder)


def _answers(folder: Path) -> str:
    model, tokenizer = _loaded("AutoModelForCausalLM", folder)
    question = [{"role": "user", "content": "What does os.getcwd do?"}]
    given = tokenizer.apply_chat_template(question, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    made = model.generate(**given, max_new_tokens=40, do_sample=False)
    return str(tokenizer.decode(made[0][given["input_ids"].shape[1] :], skip_special_tokens=True))


def _names_a_topic(folder: Path) -> str:
    model, tokenizer = _loaded("AutoModelForSequenceClassification", folder)
    logits = model(**tokenizer("Return the sine of x, measured in radians.", return_tensors="pt")).logits
    return str(model.config.id2label[int(logits.argmax())])


def _tags_words(folder: Path) -> str:
    model, tokenizer = _loaded("AutoModelForTokenClassification", folder)
    given = tokenizer([["def", "load", "(", "path", ")", ":"]], is_split_into_words=True, return_tensors="pt")
    tags = {model.config.id2label[int(number)] for number in model(**given).logits[0].argmax(-1)}
    return ", ".join(sorted(tags - {"O"}))


def _answers_a_question(folder: Path) -> str:
    model, tokenizer = _loaded("AutoModelForQuestionAnswering", folder)
    encoded = tokenizer("What does it do?", "getcwd()\nReturn the path.", return_tensors="pt")
    found = model(**encoded)
    first, last = (int(logits[0].argmax()) for logits in (found.start_logits, found.end_logits))
    return str(tokenizer.decode(encoded["input_ids"][0, first : last + 1]))


def _summarises(folder: Path) -> str:
    model, tokenizer = _loaded("AutoModelForSeq2SeqLM", folder)
    made = model.generate(**tokenizer("getcwd()", return_tensors="pt"), max_new_tokens=30, num_beams=1)
    return str(tokenizer.decode(made[0], skip_special_tokens=True))


def _points(least: float) -> Callable[[float, float], bool]:
    return lambda reached, usual: reached >= usual + least


def _a_quarter_less(reached: float, usual: float) -> bool:
    return reached <= 0.75 * usual


RECIPES = (
    Recipe("chat-scratch", "loss", "held out", "unigram", _a_quarter_less, _answers),
    Recipe(
        "docstring-topics", "accuracy", "accuracy", "accuracy of the most frequent class", _points(0.15), _names_a_topic
    ),
    Recipe("python-entities", "f1", "F1", "", _points(0.20), _tags_words),
    Recipe("python-questions", "f1", "F1", "", _points(0.20), _answers_a_question),
    Recipe("signature-summaries", "loss", "held out", "unigram", _a_quarter_less, _summarises),
)


@pytest.mark.parametrize("way", ["screens", "no-ui"])
@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_a_recipe_beats_a_counter_by_its_margin(recipe, way, open_terminal):
    if way == "screens":
        terminal = open_terminal("--profile", recipe.name)
        terminal.start_run()
        terminal.wait_for("Finished after", f"\n{recipe.shown}", seconds=MOST_SECONDS)
        terminal.press("q")
    else:
        terminal = open_terminal("--no-ui", "--profile", recipe.name, size=(160, 50))
    assert terminal.wait_for_end(MOST_SECONDS) == 0
    reached, usual = measured(terminal.events, recipe)
    print(
        f"\n{recipe.name} ({way}): {recipe.metric} {reached:.3f}, {recipe.baseline or 'the best counter'} {usual:.3f}"
    )
    assert recipe.beats(reached, usual)
    [model] = terminal.cwd.glob("runs/*/model")
    told = recipe.predicts(model)
    print(f"plain transformers says: {told}")
    assert told.strip()


def measured(events: list[dict[str, Any]], recipe: Recipe) -> tuple[float, float]:
    """(what the last evaluation reached, what counting reaches; without a name the best of the scores)."""
    [baselines] = [event for event in events if event["event"] == "BaselinesMeasured"]
    last = [event for event in events if event["event"] == "EvalDone"][-1]
    reached = last["loss"] if recipe.metric == "loss" else last["scores"][recipe.metric]
    known = {**baselines["losses"], **baselines["scores"]}
    return reached, known[recipe.baseline] if recipe.baseline else max(baselines["scores"].values())
