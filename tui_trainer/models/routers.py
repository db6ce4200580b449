"""Find out whether a mixture of experts has an auxiliary loss of its routers, and the loss's weight, for the plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from inspect import unwrap
from typing import Any

from tui_trainer.errors import Problem
from tui_trainer.models.counting import Answers, deciding_fields, empty_model, fake_tensors, make_inputs, model_config
from tui_trainer.models.heads import CAUSAL
from tui_trainer.models.shape import ModelShape

ROUTER_LOSS_KEY = "training.router_aux_loss_coef"
BALANCE_FUNCTION, OUTPUT_LOGITS_ARGUMENT = "load_balancing_loss_func", "output_router_logits"
"""Name of the loss function in the modules of such models, and the argument of `forward` that enables the loss."""
_ROWS, _TOKENS = 2, 8
answers = Answers("find_routers", format_version=1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Routers:
    """The routers of a mixture of experts. `coefficient` is the weight of their loss in the model's config, which the
    model applies only if `is_on`. `logits` is the number of router logits of one token."""

    coefficient: float
    is_on: bool
    logits: int


def routers_of(config: Mapping[str, Any], shape: ModelShape) -> Routers | None:
    """Return the routers of the model in a config.json, or None if its class computes no router loss. The first answer
    about a mixture of experts takes seconds. Raise ConfigError if the worker cannot answer."""
    paths = [*(part.path for part in shape.parts), *(linear.path for linear in shape.linears)]
    if shape.head != CAUSAL or not any("experts" in path.split(".") for path in paths):
        return None
    message, hint = "the router loss of the model could not be determined", "set it to 0 to train without a router loss"
    problem = Problem(message=message, key=ROUTER_LOSS_KEY, hint=hint)
    fields = answers.ask_or_refuse({"config": deciding_fields(config)}, problem)
    return Routers(**fields) if fields else None


def answer(question: dict[str, Any], _: Any) -> dict[str, Any]:
    """Return the fields of `Routers` in the worker, which has torch; empty if there is no router loss."""
    from unittest.mock import patch

    with fake_tensors(CAUSAL):
        config = model_config(question["config"])
        model = empty_model(config, CAUSAL)
        module_globals = unwrap(type(model).forward).__globals__
        if BALANCE_FUNCTION not in module_globals:
            return {}
        # The loss of older versions counts the tokens of each expert, for which fake tensors lack the data.
        with patch.dict(module_globals, {BALANCE_FUNCTION: lambda *_: config}):
            inputs = make_inputs(CAUSAL, _ROWS, _TOKENS, 0) | {OUTPUT_LOGITS_ARGUMENT: True}
            router_logits = model(**inputs).router_logits or ()
    return {
        "coefficient": float(getattr(config, "router_aux_loss_coef", 0.0)),
        "is_on": bool(getattr(config, OUTPUT_LOGITS_ARGUMENT, False)),
        "logits": sum(layer_logits.numel() for layer_logits in router_logits) // (_ROWS * _TOKENS),
    }
