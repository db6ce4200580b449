"""Applying a patch to a config as if the user had written its settings, and checking whether a run would accept it."""

from collections.abc import Iterator
from contextlib import suppress

from tui_trainer.advice.context import Context
from tui_trainer.advice.gather import facts_of, plan_or_problems
from tui_trainer.config.changes import Patch
from tui_trainer.config.editing import toml_text
from tui_trainer.config.load import LoadedConfig, Request, all_settings, value_of
from tui_trainer.errors import ConfigError, InputError, Problem
from tui_trainer.launching.open_run import load_config, start_problems

# A patch with settings of these sections changes the counts of the data, which are then counted again.
_OF_DATA = ("data.", "task.", "model.", "tuning.method")


def load_patched(loaded: LoadedConfig, patch: Patch) -> LoadedConfig:
    """Return the config with some settings changed, as if the user had written them. Raises ConfigError."""
    return load_config(patched_request(loaded, patch))


def patched_request(loaded: LoadedConfig, patch: Patch) -> Request:
    """Return the request that loads the config with the patch. It contains all settings that the user wrote, so that
    they keep their precedence over the profiles."""
    user_values = {key: value_of(loaded.config, key) for key in all_settings() if loaded.origin(key).by_user}
    profile = {"profile": value_of(loaded.config, "profile") or (loaded.recipe.name if loaded.recipe else "")}
    values = user_values | profile | dict(patch)
    return Request(assignments=tuple(f"{key}={toml_text(value)}" for key, value in values.items()))


def refusals(context: Context, patch: Patch) -> list[str]:
    """Return as sentences why the patched config could not be loaded, planned or started. Reasons that also hold for
    the present config are left out. If the result is empty, the patch can be offered."""
    try:
        loaded = load_patched(context.loaded, patch)
    except ConfigError as error:
        return [problem.message for problem in error.problems]
    facts = facts_of(loaded) if any(key.startswith(_OF_DATA) for key in patch) else context.facts
    plan, problems = plan_or_problems(loaded, context.hardware, facts, gpu=context.chosen_gpu)
    problems_then = problems if problems or plan is None else tuple(_start_problems(loaded))
    if context.plan is None:
        # A problem of the present config may have hidden others, so only problems with the patch's settings count.
        return [problem.message for problem in problems_then if problem.key in patch]
    problems_now = {_problem_identity(problem) for problem in (*context.problems, *_start_problems(context.loaded))}
    return [problem.message for problem in problems_then if _problem_identity(problem) not in problems_now]


def _problem_identity(problem: Problem) -> tuple[str, str]:
    """Return (setting, message without digits), which identifies a problem although a patch changes sizes in it."""
    return problem.key, "".join(sign for sign in problem.message if not sign.isdigit())


def _start_problems(loaded: LoadedConfig) -> Iterator[Problem]:
    with suppress(InputError):
        yield from start_problems(loaded)
