"""Routers of a mixture of experts, as far as a plan has to know them: whether the model's class computes a loss of
them, and with what weight its own config asks for that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from inspect import unwrap
from typing import Any

from tui_trainer.errors import Problem
from tui_trainer.models.counting import Answers, deciding_fields, empty_model, fake_tensors, inputs_of, model_config
from tui_trainer.models.heads import CAUSAL
from tui_trainer.models.shape import ModelShape

ROUTERS = "training.router_aux_loss_coef"
BALANCE, OUTPUT = "load_balancing_loss_func", "output_router_logits"
"""The function in the module of every such class, and the argument by which a forward pass calls it."""
_ROWS, _TOKENS = 2, 8
answers = Answers("find_routers", format_version=1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Routers:
    """`coefficient`: of the model's config. `is_on`: whether that asks for the loss. `logits`: of one token, the
    numbers of all routers together."""

    coefficient: float
    is_on: bool
    logits: int


def routers_of(config: Mapping[str, Any], shape: ModelShape) -> Routers | None:
    """Of the model of a config.json; None where its class computes no loss of routers. The first answer about a mixture
    takes seconds. Raises ConfigError where it cannot be looked up."""
    paths = [*(part.path for part in shape.parts), *(linear.path for linear in shape.linears)]
    if shape.head != CAUSAL or not any("experts" in path.split(".") for path in paths):
        return None
    message, hint = "the router loss of the model could not be looked up", "set it to 0 to train without a router loss"
    problem = Problem(message=message, key=ROUTERS, hint=hint)
    found = answers.ask_or_refuse({"config": deciding_fields(config)}, problem)
    return Routers(**found) if found else None


def answer(question: dict[str, Any], _: Any) -> dict[str, Any]:
    """In the worker, which has torch: the fields of `Routers`; none where there is no such loss."""
    from unittest.mock import patch

    with fake_tensors(CAUSAL):
        made = model_config(question["config"])
        model = empty_model(made, CAUSAL)
        names = unwrap(type(model).forward).__globals__
        if BALANCE not in names:
            return {}
        # Older versions count what each expert is given, which takes numbers.
        with patch.dict(names, {BALANCE: lambda *given: made}):
            logits = model(**inputs_of(CAUSAL, _ROWS, _TOKENS, 0), **{OUTPUT: True}).router_logits or ()
    return {
        "coefficient": float(getattr(made, "router_aux_loss_coef", 0.0)),
        "is_on": bool(getattr(made, OUTPUT, False)),
        "logits": sum(one.numel() for one in logits) // (_ROWS * _TOKENS),
    }
