"""A task that uses every feature of the training loop: it learns to prefer one document of a pair to the other.

Its loss has two parts, each with its own divisor. It needs the mean margin of the effective batch, and the model's
values of each row before training. `install` makes it available by its name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import tui_trainer.tasks
from tui_trainer.data.batching.collate import IGNORE
from tui_trainer.data.columns.reader import Encoded, Example
from tui_trainer.data.columns.row import Row
from tui_trainer.data.preparing.byte_bpe import TEXT_SPECIAL_TOKENS
from tui_trainer.data.preparing.token_rows import DOCUMENT_LENGTHS, INPUT_IDS, LABELS
from tui_trainer.losses.micro_batch import MicroBatch
from tui_trainer.losses.named_losses import NamedLoss
from tui_trainer.losses.next_token import NextTokenLoss
from tui_trainer.tasks.contract import RowPass
from tui_trainer.tasks.parts.learns_from_data import TableReader
from tui_trainer.tasks.parts.next_token import LearnsNextToken

BETA = 0.5
INSTALL = f"""
import sys
sys.path.insert(0, {str(Path(__file__).resolve().parents[2])!r})
from tests.toy_tasks.toy_pairs import install
install()
"""


def install() -> None:
    tui_trainer.tasks.__path__.append(str(Path(__file__).parent))
    tui_trainer.tasks.task_names.cache_clear()


def uninstall() -> None:
    tui_trainer.tasks.__path__.remove(str(Path(__file__).parent))
    tui_trainer.tasks.task_names.cache_clear()


class ToyPairs(LearnsNextToken):
    name = "toy_pairs"
    title = "Pairs of documents"
    pipeline_tag = "text-generation"
    used_settings = ()
    can_pack = True
    specials = TEXT_SPECIAL_TOKENS
    used_column_settings = ()

    def reader(self, config: Any) -> TableReader:
        return _Reader(config, self.head, self.specials)

    def objective(self, config: Any, data: Any, model: Any, *, chunk_tokens: int) -> PairLoss:
        return PairLoss(NextTokenLoss(model, chunk_tokens=chunk_tokens))

    def row_pass(self, config: Any, data: Any, objective: Any) -> RowPass:
        return RowPass(activity="reading pairs", width=2, values=objective.of_documents, key={"version": 1})


class _Reader(TableReader):
    columns = (INPUT_IDS, LABELS, DOCUMENT_LENGTHS)

    def read(self, row: Row) -> Example:
        prompt, chosen, rejected = (row.values[name] for name in ("prompt", "chosen", "rejected"))
        return Example(f"{prompt} {chosen}\n{rejected}", (prompt, chosen, rejected))

    def encode(self, examples: Sequence[Example]) -> list[Encoded]:
        found = []
        for example in examples:
            prompt, *answers = example.content
            ids = self.tokenizer(prompt)["input_ids"]
            written = [self.tokenizer(f" {answer}", add_special_tokens=False)["input_ids"] for answer in answers]
            tokens = [token for answer in written for token in (*ids, *answer)]
            labels = [label for answer in written for label in (*[IGNORE] * len(ids), *answer)]
            lengths = [len(ids) + len(answer) for answer in written]
            columns = {INPUT_IDS: tokens, LABELS: labels, DOCUMENT_LENGTHS: lengths}
            found.append(Encoded(columns, sum(label != IGNORE for label in labels)))
        return found


class PairLoss(NamedLoss):
    """The preference loss, a mean over pairs, and the cross entropy of the first document, a mean over its labels.

    The preference loss is -log sigmoid of BETA times the margin minus the mean margin of the effective batch.
    """

    parts: Mapping[str, str] = {"preference": "pairs", "likelihood": "tokens"}
    scores: Mapping[str, str] = {"accuracy": "pairs", "margin": "pairs"}
    terms: Mapping[str, str] = {"level": "pairs"}

    def __init__(self, losses: NextTokenLoss) -> None:
        self.losses = losses

    def counts(self, batch: MicroBatch) -> Mapping[str, int]:
        return {"pairs": batch.sample_count, "tokens": int(batch.document_labels[::2].sum())}

    def terms_of(self, batch: MicroBatch) -> Mapping[str, Tensor]:
        return {"level": margins(batch, self.losses.label_losses(batch)).sum()}

    def __call__(self, batch: MicroBatch) -> Mapping[str, Tensor]:
        losses = self.losses.label_losses(batch)
        found = margins(batch, losses)
        return {
            "preference": -F.logsigmoid(BETA * (found - batch.terms["level"] / 2)).sum(),
            "likelihood": (losses * (batch.documents % 2 == 0)).sum(),
            # Not of the margins, which are rounding errors at the first step.
            "accuracy": (by_document(batch, losses).diff() > 0).sum(),
            "margin": found.sum(),
        }

    def of_documents(self, batch: MicroBatch) -> Tensor:
        """Return the cross entropy of both documents of each pair, in nats: fp32 [samples, 2]."""
        return by_document(batch, self.losses.label_losses(batch))


def by_document(batch: MicroBatch, losses: Tensor) -> Tensor:
    found = torch.zeros(len(batch.document_labels), device=losses.device)
    return found.index_add(0, batch.documents, losses).view(-1, 2)


def margins(batch: MicroBatch, losses: Tensor) -> Tensor:
    """Return by how many nats the first document of each pair gained more log-probability than the second."""
    gained = batch.row_values - by_document(batch, losses)
    return gained[:, 0] - gained[:, 1]


TASK = ToyPairs()
