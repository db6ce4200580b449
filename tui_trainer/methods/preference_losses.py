"""The losses of the tasks `preference` and `kto`, for settings and plans. `losses` computes them."""

from dataclasses import dataclass

# Names of the scores that the losses report.
ACCURACY, MARGIN = "accuracy", "reward_margin"
REWARDS = ("reward_chosen", "reward_rejected")
LOG_PROBABILITIES = ("logp_chosen", "logp_rejected")


@dataclass(frozen=True, kw_only=True, slots=True)
class PreferenceLossType:
    """One loss over pairs of answers, or over marked answers, without its code."""

    label: str
    help: str
    """Explanation for the user, with the paper that defines the loss."""
    rate_factor: float
    """Usual learning rate, as a share of the rate for supervised training of the same model."""
    has_reference: bool = True
    """Whether the loss compares the model with the model before training."""
    beta: float = 0.1
    """Value of `task.beta = "auto"`."""
    sft_weight: float = 0.0
    """Value of `task.sft_weight = "auto"`."""


# Rates are those for 7 to 8 B, whose rate for supervised training is 2e-5, and 2e-4 with LoRA. DPO: 5e-7 and 5e-6
# (Zephyr, arXiv:2310.16944; alignment-handbook). SimPO: 1e-6, beta 2 to 2.5 (arXiv:2405.14734, table 8). ORPO: 8e-6
# (arXiv:2403.07691, appendix C). CPO: 1e-6 (TRL). Length-normalized DPO: 5e-7, beta 5 (Tulu 3, arXiv:2411.15124).
# KTO: 5e-7 to 5e-6 (TRL's guide to KTO, by its authors).
PREFERENCE_LOSSES = {
    "sigmoid": PreferenceLossType(label="DPO", help="logistic loss (arXiv:2305.18290)", rate_factor=0.025),
    "ipo": PreferenceLossType(label="IPO", help="a margin of 1/(2 beta) (arXiv:2310.12036)", rate_factor=0.025),
    "robust": PreferenceLossType(
        label="robust DPO", help="DPO if some answers are swapped (arXiv:2403.00409)", rate_factor=0.025
    ),
    "sigmoid_norm": PreferenceLossType(
        label="length-normalized DPO", help="DPO of means over tokens (arXiv:2411.15124)", rate_factor=0.025, beta=5.0
    ),
    "simpo": PreferenceLossType(
        label="SimPO", help="means over tokens, without a reference (arXiv:2405.14734)", rate_factor=0.05,
        has_reference=False, beta=2.0,
    ),
    "orpo": PreferenceLossType(
        label="ORPO", help="odds ratio and cross entropy, without a reference (arXiv:2403.07691)", rate_factor=0.4,
        has_reference=False, sft_weight=1.0,
    ),
    "cpo": PreferenceLossType(
        label="CPO", help="margin and cross entropy, without a reference (arXiv:2401.08417)", rate_factor=0.05,
        has_reference=False, sft_weight=1.0,
    ),
}  # fmt: skip
KTO = PreferenceLossType(label="KTO", help="answers marked as good or bad (arXiv:2402.01306)", rate_factor=0.025)
