"""The table of peak learning rates: the value of `auto`, and the range without a warning.

A rate depends on what trains and on the number of parameters of the whole model, including the base model of adapters,
because small models train at rates at which large ones diverge. All code that chooses or checks a rate uses this table.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Start = Literal["scratch", "lora", "full"]
"""Start of training: random weights, LoRA adapters on a pretrained model, or all weights of a pretrained model."""


@dataclass(frozen=True, slots=True)
class PeakRate:
    """Peak learning rate for `auto`, and its bounds: below `least` weights hardly change, above `most` runs diverge."""

    auto: float
    most: float

    @property
    def least(self) -> float:
        """Lowest reasonable rate: a tenth of `auto`. No published recipe has a lower one."""
        return self.auto / 10


@dataclass(frozen=True, slots=True)
class RatesOfSize:
    """Peak rates for models of at most a given number of parameters."""

    most_parameters: float
    rates: Mapping[Start, PeakRate]


# `auto` is a published rate. `most` is ten times `auto`, or the highest rate of a published recipe if that is more.
#
# From scratch. nanoGPT, config/train_shakespeare_char.py: 1e-3 for 10.6 M ("with baby networks can afford to go a bit
# higher"). GPT-3, arXiv:2005.14165, table 2.1: 125 M 6e-4, 350 M 3e-4, 760 M 2.5e-4, 1.3 B 2e-4, 2.7 B 1.6e-4, 6.7 B
# 1.2e-4, 13 B 1e-4, 175 B 6e-5. OPT, arXiv:2205.01068, table 1, has the same up to 13 B. Pythia, arXiv:2304.01373:
# 70 M 1e-3, 160 M 6e-4, 410 M and 1 B 3e-4, 1.4 B 2e-4, 2.8 B 1.6e-4, 6.9 B and 12 B 1.2e-4. Llama, arXiv:2302.13971,
# table 2: 7 B and 13 B 3e-4, 33 B and 65 B 1.5e-4. Chinchilla, arXiv:2203.15556: 70 B 1e-4.
#
# All weights of a pretrained model. Turc et al., arXiv:1908.08962 (google-research/bert): 3e-5 to 3e-4 for BERTs of 4 M
# to 110 M. ELECTRA, arXiv:2003.10555, appendix: 14 M 3e-4, 110 M 1e-4, 335 M 5e-5. BERT, arXiv:1810.04805, A.3: 2e-5,
# 3e-5 or 5e-5 for 110 M and 340 M. RoBERTa, arXiv:1907.11692: 355 M 1e-5 to 3e-5. T5's page in transformers: 1e-4 to
# 3e-4 with AdamW (its own 1e-3 is for an Adafactor that scales steps by the weights, which ours does not). SmolLM2,
# recipes of huggingface/alignment-handbook: 135 M and 360 M 1e-3, 1.7 B 3e-4. Llama 2 Chat, arXiv:2307.09288: 2e-5.
# Tulu 2, arXiv:2311.10702: 7 B and 13 B 2e-5, 70 B 1e-5. Tulu 3, arXiv:2411.15124: 8 B 5e-6, 70 B 2e-6.
#
# LoRA. arXiv:2106.09685, appendix D: RoBERTa of 125 M 4e-4 to 5e-4, of 355 M 2e-4 to 4e-4, GPT-2 of 354 M and 774 M and
# GPT-3 2e-4. QLoRA, arXiv:2305.14314, table 9: 7 B and 13 B 2e-4, 33 B and 65 B 1e-4. "LoRA Without Regret"
# (thinkingmachines.ai, 2025): ten times the rate of all weights, 5e-4 for 1 B and 3e-4 for 8 B. None is published for
# the smallest models: they have the rate from scratch, as adapters begin at zero.
ADAPTIVE_RATES = (
    RatesOfSize(30e6, {"scratch": PeakRate(1e-3, 1e-2), "full": PeakRate(3e-4, 3e-3), "lora": PeakRate(1e-3, 1e-2)}),
    RatesOfSize(200e6, {"scratch": PeakRate(6e-4, 6e-3), "full": PeakRate(5e-5, 1e-3), "lora": PeakRate(4e-4, 4e-3)}),
    RatesOfSize(1e9, {"scratch": PeakRate(3e-4, 3e-3), "full": PeakRate(3e-5, 1e-3), "lora": PeakRate(3e-4, 3e-3)}),
    RatesOfSize(4e9, {"scratch": PeakRate(2e-4, 2e-3), "full": PeakRate(2e-5, 3e-4), "lora": PeakRate(2e-4, 2e-3)}),
    RatesOfSize(
        20e9, {"scratch": PeakRate(1.2e-4, 1.2e-3), "full": PeakRate(2e-5, 2e-4), "lora": PeakRate(2e-4, 2e-3)}
    ),
    RatesOfSize(
        math.inf, {"scratch": PeakRate(6e-5, 6e-4), "full": PeakRate(1e-5, 1e-4), "lora": PeakRate(1e-4, 1e-3)}
    ),
)
# AdamW moves each of P weights by about its rate, sqrt(P) times as far in all; SGD moves all of them together by its
# rate times the norm of the clipped gradient, at most 1, so its rates are those of every size. Measured on 90 k and
# 35 k weights of a small Llama, 80 steps: the drop of AdamW's loss at 2e-5 (full), 2e-4 (LoRA) and 1e-3 (scratch) is
# that of SGD at 0.005, 0.04 and 0.1.
PLAIN_RATES = (
    RatesOfSize(math.inf, {"scratch": PeakRate(0.1, 3.0), "full": PeakRate(0.03, 0.3), "lora": PeakRate(0.1, 3.0)}),
)


def rate_of_size(table: tuple[RatesOfSize, ...], start: Start, parameters: int) -> PeakRate:
    """Return the peak rates for a model with this number of parameters."""
    return next(row.rates[start] for row in table if parameters <= row.most_parameters)
