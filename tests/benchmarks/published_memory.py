"""Memory of a card: planned in three ways, against peaks that others have published of theirs.

    python tests/benchmarks/published_memory.py [--only PART OF A NAME] [--json FILE]

Each row is a run that somebody measured on a real card, with its settings and its source. *Planned* are the plan's own
lines of what torch allocates, with layers counted on tensors without numbers; *general* are the same lines with the
formula that a plan falls back to where no layer can be counted; *simulated* is a whole step of the program on tensors
without numbers (`simulated_step.py`), which knows nothing of the plan. Weights in 4 bits have no such step. All peaks
are of what torch had allocated; what its allocator could not use and CUDA's context are in none of them. On a CPU
`memory_grid.py --simulate` compares the same three.

The programs differ: torchtune and litgpt train 16-bit weights and adapters as they are, without copies in fp32
(`in_16_bits`); torchtune compiled all models but the first, which the simulated steps are not; litgpt computes the loss
in chunks of 128 tokens, GELU by one kernel where transformers' gelu_new takes eight, and keeps head and embedding of
Gemma apart. That is in the rows as far as the program has a setting for it. litgpt's runs in 4 bits are left out: their
peaks are those of the whole model as it is loaded.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from memory_grid import completed, counted_parts
from memory_grid_cases import HALF, Case

from tui_trainer.planning.memory.estimate import memory_parts
from tui_trainer.planning.memory.parts import BatchSizes
from tui_trainer.units import GIB

GB = 10**9
TORCHTUNE = "torchtune README.md at bd2a0fc"
LITGPT = "litgpt config_hub/finetune/README.md at 2685705"
_IN_16_BITS = 2
WAYS = ("planned", "general", "simulated")
TOLERANCES = (0.10, 0.15, 0.20)


@dataclass(frozen=True, kw_only=True)
class Published:
    """A peak that was measured by others. `unit` is in bytes, as the source counts."""

    name: str
    case: Case
    peak: float
    unit: int
    source: str
    card: str
    in_16_bits: bool = False
    compiled: bool = False

    @property
    def peak_bytes(self) -> int:
        return int(self.peak * self.unit)


def _llama(hidden: int, layers: int, heads: int, kv_heads: int, mlp: int, vocabulary: int, **more: Any) -> Case:
    return Case(family="llama", hidden=hidden, layers=layers, heads=heads, kv_heads=kv_heads, mlp=mlp,
                vocabulary=vocabulary, **HALF, **more)  # fmt: skip


def _llama_3b(**more: Any) -> Case:
    return _llama(3072, 28, 24, 8, 8192, 128256, rows=2, row_tokens=4096, tied=True, **more)


def _llama_8b(**more: Any) -> Case:
    return _llama(4096, 32, 32, 8, 14336, 128256, **more)


def _llama_7b(**more: Any) -> Case:
    return _llama(4096, 32, 32, 32, 11008, 32000, **more)


_TUNE: dict[str, Any] = {"rank": 8, "targets": "q_proj,v_proj,o_proj,gate_proj,up_proj,down_proj"}
_LIT: dict[str, Any] = {"rank": 32, "targets": "q_proj,v_proj", "lora_dropout": 0.05, "row_tokens": 512,
                        "chunk": 128, "accumulation": 4}  # fmt: skip
_TINY: dict[str, Any] = {"row_tokens": 512, "chunk": 128}
_A100, _A6000, _4090, _A10G = "A100", "RTX A6000", "RTX 4090", "A10G"


def _tune(name: str, case: Case, peak: float, card: str, **more: Any) -> Published:
    return Published(name=name, case=case, peak=peak, unit=GIB, source=TORCHTUNE, card=card, **more)


def _lit(name: str, case: Case, peak: float, **more: Any) -> Published:
    return Published(name=name, case=case, peak=peak, unit=GB, source=LITGPT, card=_A10G, **more)


ROWS = (
    _tune("Llama 3.2 3B full", _llama_3b(), 60.0, _A100, in_16_bits=True),
    _tune("Llama 3.2 3B full, compiled", _llama_3b(), 51.0, _A100, in_16_bits=True, compiled=True),
    _tune("Llama 3.2 3B full, compiled, checkpoints", _llama_3b(checkpointing=True, chunk=1024), 24.9, _A100,
          in_16_bits=True, compiled=True),
    _tune("Llama 3.1 8B LoRA, compiled", _llama_8b(rows=2, row_tokens=2048, chunk=512, **_TUNE), 30.3, _A6000,
          compiled=True),
    _tune("Llama 3.1 8B LoRA, compiled, checkpoints",
          _llama_8b(rows=2, row_tokens=2048, chunk=512, checkpointing=True, **_TUNE), 16.2, _4090, compiled=True),
    _tune("Llama 3.1 8B QLoRA, compiled, checkpoints",
          _llama_8b(rows=2, row_tokens=2048, chunk=512, checkpointing=True, in_4_bits=True, **_TUNE), 7.4, _4090,
          compiled=True),
    _lit("Llama 3 8B LoRA", _llama_8b(rows=1, **_LIT), 19.73),
    _lit("Llama 2 7B LoRA", _llama_7b(rows=2, **_LIT), 19.77),
    _lit("Mistral 7B LoRA",
         Case(family="mistral", hidden=4096, layers=32, heads=32, kv_heads=8, mlp=14336, vocabulary=32000, rows=2,
              **_LIT, **HALF), 20.66),
    _lit("TinyLlama 1.1B full", _llama(2048, 22, 32, 4, 5632, 32000, rows=4, accumulation=8, **_TINY), 14.10,
         in_16_bits=True),
    _lit("TinyLlama 1.1B LoRA",
         _llama(2048, 22, 32, 4, 5632, 32000, rows=8, rank=32, lora_dropout=0.05, **_TINY), 13.50),
    _lit("Phi-2 LoRA",
         Case(family="phi", hidden=2560, layers=32, heads=32, mlp=10240, vocabulary=51200, rows=4, rank=8,
              lora_dropout=0.05, accumulation=2, **_TINY, **HALF), 13.98),
    _lit("Gemma 2B LoRA",
         Case(family="gemma", hidden=2048, layers=18, heads=8, kv_heads=1, head_size=256, mlp=16384, vocabulary=256000,
              rows=2, rank=8, lora_dropout=0.1, accumulation=3, tied=False, **_TINY, **HALF), 12.62),
    _lit("StableLM alpha 3B LoRA",
         Case(family="gpt_neox", hidden=4096, layers=16, heads=32, mlp=16384, vocabulary=50688, rows=1,
              **{**_LIT, "targets": "query_key_value"}, **HALF), 8.58),
)  # fmt: skip


def planned_bytes(row: Published, *, general: bool = False) -> int:
    """What the plan's lines say that torch allocates; `general`: where no layer could be counted."""
    case, shape = row.case, row.case.shape()
    setup = replace(case.setup("cuda"), compiled=row.compiled)
    parts = memory_parts(
        shape, setup if general else completed(case, setup),
        BatchSizes(rows=case.rows, eval_rows=case.rows, row_tokens=case.row_tokens, accumulation=case.accumulation),
    )  # fmt: skip
    found = counted_parts(parts, "cuda")
    if row.in_16_bits:
        once = _IN_16_BITS * shape.parameters
        found |= {
            "weights": once,
            "master weights": 0,
            "optimizer": 2 * once,
            "gradients": once * ("gradients" in found),
        }
    return sum(found.values())


def predictions(row: Published) -> dict[str, int]:
    """Bytes at the peak in each way there is."""
    from simulated_step import simulated_peak_bytes

    found = {"planned": planned_bytes(row), "general": planned_bytes(row, general=True)}
    if row.case.in_4_bits:
        return found
    return found | {"simulated": simulated_peak_bytes(row.case, "cuda", in_16_bits=row.in_16_bits)}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--only", default="")
    options.add_argument("--json", type=Path)
    chosen = options.parse_args()
    print(f"{'GiB':42}| published" + "".join(f"{way:>10}   error" for way in WAYS) + " | card, source")
    found = []
    for row in (row for row in ROWS if chosen.only in row.name):
        predicted = predictions(row)
        columns = "".join(
            f"{predicted[way] / GIB:10.2f} {predicted[way] / row.peak_bytes - 1:+7.1%}"
            if way in predicted
            else f"{'-':>18}"
            for way in WAYS
        )
        print(f"{row.name:42}| {row.peak_bytes / GIB:9.2f}{columns} | {row.card}, {row.source}", flush=True)
        found.append({"name": row.name, "published_bytes": row.peak_bytes, "predicted_bytes": predicted,
                      "compiled": row.compiled, "card": row.card, "source": row.source})  # fmt: skip
        if chosen.json:
            chosen.json.write_text(json.dumps(found, indent=1))
    for way in WAYS:
        errors = [
            (
                row["predicted_bytes"][way] / row["published_bytes"] - 1,
                row["predicted_bytes"]["planned"] / row["published_bytes"] - 1,
            )
            for row in found
            if way in row["predicted_bytes"]
        ]
        counts = (f"{sum(abs(error) <= most for error, _ in errors)} within {most:.0%}" for most in TOLERANCES)
        nearer = sum(abs(error) < abs(planned) for error, planned in errors)
        print(f"{way}: of {len(errors)}, {', '.join(counts)}" + f"; nearer than planned {nearer}" * (way != "planned"))


if __name__ == "__main__":
    main()
