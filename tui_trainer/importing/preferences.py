"""Convert losses over answers, which TRL defines, and which axolotl and LLaMA-Factory also use.

Sources: trl/trainer/dpo_trainer.py, kto_trainer.py and reward_trainer.py, trl/experimental/cpo and orpo of TRL 1.16."""

from tui_trainer.importing.conversion import Conversion, Given
from tui_trainer.importing.rules import Automatic, NotNeeded, Table, Why, listed, number
from tui_trainer.methods.preference_losses import PREFERENCE_LOSSES

# Losses of DPOConfig that this program has under the same name.
DPO_LOSSES = ("sigmoid", "ipo", "robust", "sigmoid_norm")
# Default of TRL and LLaMA-Factory for all losses.
_BETA = 0.1
_SIMPO_GAMMA = 0.5
COMPUTED_ONCE = Automatic("reference log-probabilities are computed once before the first step")
WHOLE_PROMPTS = Automatic("a prompt is truncated only if the answers need the room")
TASKS = ("kto", "preference", "reward")
"""Tasks that learn from answers which are better or worse."""
CUT_PROMPT = "if a row is longer, the prompt loses its beginning"
# Keys that the tools name alike, and that do not change what is learned.
KEYS: Table = {
    "precompute_ref_log_probs": COMPUTED_ONCE,
    """f_alpha_divergence_coef discopop_tau beta label_smoothing loss_weights simpo_gamma cpo_alpha
    rpo_alpha rl_beta dpo_beta orpo_alpha""": NotNeeded("only used by a loss that is not enabled"),
}
# Keys for the tokens to train on, in all tools.
_LEARNT_TOKENS = "assistant_only_loss completion_only_loss train_on_inputs train_on_prompt mask_history"


def write_loss(
    conversion: Conversion,
    loss_type: str,
    *sources: Given | None,
    beta: Given | None,
    gamma: Given | None = None,
    reason: str = "",
    has_dropout: bool = False,
) -> None:
    """Write the task and its loss, and leave out keys that do not apply to pairs of answers.

    `sources` are the keys that choose the loss. Without `has_dropout`, the tool turns off all dropout."""
    conversion.write("task.loss_type", loss_type, *sources, reason=reason)
    _write_beta(conversion, beta)
    if loss_type == "simpo":
        default = "" if gamma else f"the default of {conversion.tool}"
        conversion.write("task.simpo_gamma", gamma.value if gamma else _SIMPO_GAMMA, gamma, reason=default)
    else:
        conversion.leave(Why.NOT_NEEDED, f"it has no effect on {PREFERENCE_LOSSES[loss_type].label}", gamma)
    _write_task(conversion, "preference", *sources, has_dropout=has_dropout)


def write_kto(
    conversion: Conversion,
    *sources: Given | None,
    beta: Given | None,
    weights: tuple[Given | None, Given | None],
    has_dropout: bool = False,
) -> None:
    """Write the task of marked answers and its loss. `weights` are those of desirable and of undesirable answers."""
    _write_beta(conversion, beta)
    for name, weight in zip(("desirable", "undesirable"), weights, strict=True):
        if weight:
            conversion.write(f"task.{name}_weight", weight.value, weight)
    reason = f"the KL term is a mean over the effective batch, but in {conversion.tool} over the rows of a pass"
    _write_task(conversion, "kto", *sources, reason=reason, has_dropout=has_dropout)


def write_reward(
    conversion: Conversion,
    *sources: Given | None,
    centering: Given | None = None,
    reason: str = "",
    has_margins: bool = False,
    has_dropout: bool = False,
) -> None:
    """Write the task of reward models. `centering` is the weight that keeps rewards near 0. Without `has_margins`, the
    tool ignores a column of margins."""
    if centering:
        conversion.write("task.center_rewards_coefficient", centering.value, centering)
    if not has_margins:
        conversion.write("data.label_column", "", reason=f"{conversion.tool} uses no margins")
    _write_task(conversion, "reward", *sources, reason=reason, has_dropout=has_dropout)


def _write_beta(conversion: Conversion, beta: Given | None) -> None:
    default = "" if beta else f"the default of {conversion.tool}"
    conversion.write("task.beta", beta.value if beta else _BETA, beta, reason=default)


def _write_task(
    conversion: Conversion, task: str, *sources: Given | None, reason: str = "", has_dropout: bool = False
) -> None:
    """Write the task, and leave out keys that do not apply to it. Without `has_dropout`, the tool uses no dropout."""
    conversion.write("task.type", task, *sources, reason=reason)
    learnt_tokens = (conversion.first_unread(name) for name in _LEARNT_TOKENS.split())
    conversion.leave(Why.NOT_NEEDED, "only answers are trained on", *learnt_tokens)
    dropout = conversion.first_unread("lora_dropout")
    if not has_dropout and (dropout or conversion.has("use_peft")):
        conversion.write("tuning.lora_dropout", 0, dropout, reason=f"{conversion.tool} uses no dropout on answers")


def write_dpo(
    conversion: Conversion,
    losses: Given | None,
    weights: Given | None,
    smoothing: Given | None,
    *sources: Given | None,
    beta: Given | None,
    reason: str = "",
    has_dropout: bool = False,
) -> None:
    """Convert the losses of DPOConfig: a single one, or one with the weight 1 and `sft`, the cross entropy."""
    names = [str(name) for name in listed(losses.value)] if losses else ["sigmoid"]
    shares = [number(weight) for weight in listed(weights.value)] if weights else [1.0] * len(names)
    main_names = [name for name in names if name != "sft"]
    if len(main_names) != 1 or main_names[0] not in DPO_LOSSES or len(names) > 2:
        reason = f"the supported losses are {', '.join(DPO_LOSSES)}, each alone or together with sft"
        conversion.leave(Why.REFUSED, reason, losses, weights)
        return
    share_by_name = dict(zip(names, shares, strict=False))
    if len(shares) != len(names) or share_by_name[main_names[0]] != 1:
        conversion.leave(Why.REFUSED, f"the weight of {main_names[0]} must be 1", weights)
        return
    loss_type = main_names[0]
    if loss_type == "robust" and smoothing and smoothing.number:
        conversion.write("task.label_smoothing", smoothing.value, smoothing)
    elif loss_type == "robust":
        loss_type, reason = "sigmoid", "without label_smoothing, robust is DPO"
    elif smoothing and not smoothing.is_off:
        note = f"TRL ignores it for {loss_type}; for swapped pairs, set task.loss_type = robust"
        conversion.leave(Why.NOT_NEEDED, note, smoothing)
    write_loss(conversion, loss_type, *sources, losses, beta=beta, reason=reason, has_dropout=has_dropout)
    if "sft" in names:
        conversion.write("task.sft_weight", share_by_name["sft"], losses, weights, reason="the weight of sft")
    else:
        conversion.leave(Why.NOT_NEEDED, "the only loss has the weight 1", weights)


def write_cross_entropy(conversion: Conversion, weight: Given | None, name: str) -> None:
    """Convert the weight of the cross entropy in CPOConfig, whose default is 1, also for SimPO."""
    if weight:
        conversion.write("task.sft_weight", weight.value, weight)
    else:
        reason = f"the default of {name}, also for SimPO; the paper's SimPO has 0"
        conversion.write("task.sft_weight", 1.0, reason=reason)
