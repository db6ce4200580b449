"""What one layer of a model computes from one token, and how much of it autograd keeps, in bytes: by a dry run."""

from dataclasses import dataclass
from functools import cached_property

from tui_trainer.models.modules import Linear
from tui_trainer.models.targets import adapted
from tui_trainer.planning.memory.parts import HALF, Static
from tui_trainer.planning.training_setup import LayerBytes

# Of each pair of tokens, where attention is computed step by step: products, and what softmax makes of them.
_RESULTS_OF_SCORES = 2.9


@dataclass(frozen=True)
class ModelMemory(Static):
    """With what a layer computes: bytes of one token in a row of `row_tokens`; with a decoder behind an encoder, of one
    token of the input in one layer of the encoder, what the decoder does shared out among them."""

    row_tokens: int

    @cached_property
    def counted(self) -> LayerBytes:
        """By a dry run. Where there was none, 34 bytes a number of the hidden state in 16 bits, and 5 a head for each
        pair of tokens (Korthikanti et al., arXiv:2205.05198, section 4.1); without scores where the kernel is fused."""
        if self.setup.counted:
            return self.setup.counted
        halves, heads = self.compute_size / HALF, self.shape.attention_heads
        scores = 5 * heads * self.row_tokens if self.setup.eager_attention or self.shape.attention_dropout else 0
        kept = int(halves * (34 * self.shape.hidden_size + scores))
        return LayerBytes(kept=kept, made=2 * kept, evaluated=2 * kept, largest_kept=kept, largest_made=2 * kept)

    @property
    def keeps_scores(self) -> bool:
        """Whether attention gives all scores to the backward pass."""
        return self.counted.made_per_pair >= _RESULTS_OF_SCORES * self.compute_size * self.shape.attention_heads

    @property
    def own_temporaries(self) -> int:
        """What the model itself computes forward and does not keep, in numbers as wide as those between layers.

        Where these have 16 bits, fp32 results (of norms) are left out: their places are large enough for what follows.
        """
        found = self.counted
        wide = found.wide if self.weight_size == HALF and self.shape.head == "causal_lm" else 0
        return int(max(0, found.made - found.kept - self.adapter_temporaries - wide))

    @property
    def adapter_temporaries(self) -> int:
        """The same of adapters: the widened result, scaled, and added to that of the layer."""
        if not self.setup.has_adapter:
            return 0
        widened = (x.outputs * x.count * self._share(x) for x in adapted(self.shape, self.setup.lora_targets))
        return int(3 * self.compute_size * sum(widened) / self.shape.layers)

    @property
    def layer_input(self) -> int:
        """What gradient checkpointing keeps: the layer's input, in numbers as wide as the weights."""
        layers = self.shape.layers + self.shape.decoder_layers * self._answer_share
        return int(self.weight_size * self.shape.hidden_size * layers / self.shape.layers)

    @property
    def _answer_share(self) -> float:
        """Tokens of an answer for each token of the input."""
        return self.setup.target_tokens / self.row_tokens

    def _share(self, linear: Linear) -> float:
        """How many vectors a product is given for each token of the input."""
        return {"source": 1.0, "target": self._answer_share, "row": 1 / self.row_tokens}[linear.reads]
