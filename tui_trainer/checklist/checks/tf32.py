"""TF32 products and cuDNN's choice of algorithms: things of NVIDIA cards."""

from __future__ import annotations

from tui_trainer.checklist.contract import Check, Context, Verdict, not_applicable


def look(context: Context) -> Verdict:
    layers = context.config.model.scratch.num_hidden_layers
    return not_applicable(
        f"TF32 needs a GPU, and this run uses none; cuDNN tunes convolutions, of which these {layers} layers have none",
        switch="TF32: no GPU",
    )


CHECK = Check(
    name="tf32",
    order=110,
    title="TF32 and cuDNN autotune",
    guides=("E should see 1", "E optimisation 3", "E optimisation 5", "C mixed precision"),
    claim="up to 8x faster products, 1-2 % for cuDNN (guide E)",
    why="Ampere and newer cards multiply fp32 much faster when ten bits of mantissa are enough.",
    look=look,
    needs_plan=False,
)
