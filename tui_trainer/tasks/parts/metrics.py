"""The metric that names the best model: what is said where it is not measured."""

from collections.abc import Iterable
from difflib import get_close_matches

from tui_trainer.config.sections import Config
from tui_trainer.errors import Problem
from tui_trainer.safe_text import one_line

METRIC_KEY = "evaluation.metric_for_best_model"


def metric_problems(config: Config, measured: Iterable[str], where: str) -> list[Problem]:
    """The metric asked for is not among those `measured`; `where`: by which task, or with which labels."""
    wanted, known = config.evaluation.metric_for_best_model, ("loss", *measured)
    if wanted in known:
        return []
    near = get_close_matches(wanted, known, n=1) or [name for name in known if name in wanted or wanted in name]
    guess = f"did you mean {near[0]}? " if near else ""
    message = f"{one_line(wanted, 40)} is not measured {where}"
    return [Problem(message=message, key=METRIC_KEY, hint=f"{guess}known: {', '.join(known)}")]
