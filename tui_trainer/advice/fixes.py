"""Settings on top of a config: as the user would have written them, and whether the plan accepts them."""

from collections.abc import Iterator
from contextlib import suppress

from tui_trainer.advice.context import Context
from tui_trainer.advice.gather import facts_of, plan_or_problems
from tui_trainer.config.changes import Patch
from tui_trainer.config.editing import toml_text
from tui_trainer.config.load import LoadedConfig, Request, all_settings, value_of
from tui_trainer.errors import ConfigError, InputError, Problem
from tui_trainer.launching.open_run import load_config, start_problems

# Sections of what is counted in the data: with other settings there it is counted anew.
_OF_DATA = ("data.", "task.", "model.", "tuning.method")


def patched(loaded: LoadedConfig, patch: Patch) -> LoadedConfig:
    """Return the config with some settings changed, as if the user had written them. Raises ConfigError."""
    return load_config(as_request(loaded, patch))


def as_request(loaded: LoadedConfig, patch: Patch) -> Request:
    """Return the request for such a config: all that the user wrote is written again, so precedence stays, and the
    profiles give the rest."""
    written = {key: value_of(loaded.config, key) for key in all_settings() if loaded.origin(key).by_user}
    profile = {"profile": value_of(loaded.config, "profile") or (loaded.recipe.name if loaded.recipe else "")}
    values = written | profile | dict(patch)
    return Request(assignments=tuple(f"{key}={toml_text(value)}" for key, value in values.items()))


def refusals(context: Context, patch: Patch) -> list[str]:
    """Return why the patched config could not be loaded, planned or started, as sentences, without reasons that hold
    for the present config too. If there are none, the patch can be offered."""
    try:
        loaded = patched(context.loaded, patch)
    except ConfigError as error:
        return [problem.message for problem in error.problems]
    facts = facts_of(loaded) if any(key.startswith(_OF_DATA) for key in patch) else context.facts
    plan, problems = plan_or_problems(loaded, context.hardware, facts, gpu=context.chosen_gpu)
    problems_then = problems if problems or plan is None else tuple(_of_start(loaded))
    if context.plan is None:
        # The patch may solve the problem that hid another one.
        return [problem.message for problem in problems_then if problem.key in patch]
    problems_now = {_told(problem) for problem in (*context.problems, *_of_start(context.loaded))}
    return [problem.message for problem in problems_then if _told(problem) not in problems_now]


def _told(problem: Problem) -> tuple[str, str]:
    """Return what identifies a problem: its message without digits, because the patch may change sizes in it."""
    return problem.key, "".join(sign for sign in problem.message if not sign.isdigit())


def _of_start(loaded: LoadedConfig) -> Iterator[Problem]:
    with suppress(InputError):
        yield from start_problems(loaded)
