"""Commands that try a trained model: a text, or a conversation."""

import sys
from typing import Annotated

import typer

from tui_trainer.cli.application import GpuName, RunReference, app, option, run_named
from tui_trainer.errors import InputError

Temperature = Annotated[float, typer.Option(min=0, max=10, help="0 takes the likeliest token.")]
NewTokens = Annotated[int, typer.Option(min=1, max=100_000, help="Tokens to write.")]
Seed = Annotated[int, typer.Option(min=0, max=2**63 - 1, help="The same seed writes the same text.")]


@app.command()
def generate(
    run: RunReference = "last",
    prompt: Annotated[
        str | None,
        typer.Argument(metavar="PROMPT", help="Without it, lines are read one by one.", show_default=False),
    ] = None,
    max_new_tokens: NewTokens = 200,
    temperature: Temperature = 0.8,
    seed: Seed = 0,
) -> None:
    """Try a trained model: it continues a text, or answers one as its task does."""
    folder = run_named(run)
    from tui_trainer.exporting.weights import source_words, weights_of

    # Before torch is loaded, which takes seconds.
    source = source_words(weights_of(folder))
    from tui_trainer.conversation import continue_once, converse
    from tui_trainer.exporting.generate import Sampling, Writer

    writer = Writer(folder)
    sampling = Sampling(max_new_tokens=max_new_tokens, temperature=temperature, seed=seed)
    print(f"{folder.name}: {source}", file=sys.stderr)
    if prompt is not None:
        continue_once(writer, prompt, sampling)
        return
    converse(writer, sampling)


@app.command()
def chat(
    run: RunReference = "last",
    system: Annotated[str, option("--system", "TEXT", "What the conversation begins with.")] = "",
    against: Annotated[str, option("--against", "base", "The base model answers first.")] = "",
    max_new_tokens: NewTokens = 400,
    temperature: Temperature = 0.8,
    seed: Seed = 0,
    gpu: GpuName = None,
) -> None:
    """Hold a conversation with a trained model that answers, or write a text with one that continues."""
    if against not in ("", "base"):
        raise InputError("--against takes base", hint="`tui-trainer evaluate` compares other models")
    folder = run_named(run)
    from tui_trainer.exporting.weights import source_words, weights_of

    # Before torch is loaded, which takes seconds.
    source = source_words(weights_of(folder))
    from tui_trainer.exporting.trained_model import TrainedModel

    trained = TrainedModel.of(folder, unfinished=True)
    if trained.head != "causal_lm":
        hint = f"`tui-trainer generate {folder.name}` asks it one text at a time"
        raise InputError(f"{folder.name} learnt {trained.task.name}, which holds no conversation", hint=hint)
    base, reason = trained.base_model() if against else (None, "")
    if against and base is None:
        raise InputError(reason or f"{folder.name} was trained from scratch: it has no base model")
    from tui_trainer.conversation import hold
    from tui_trainer.exporting.conversation import Conversation
    from tui_trainer.exporting.device import inference_device
    from tui_trainer.exporting.generate import Sampling, Writer

    device = inference_device(gpu)
    writers = {"base": Writer(folder, device=device, base=base)} if base else {}
    writers["tuned"] = Writer(folder, device=device)
    sampling = Sampling(max_new_tokens=max_new_tokens, temperature=temperature, seed=seed)
    print(f"{folder.name}: {source}; /help lists commands, Ctrl+C ends an answer, Ctrl+D leaves", file=sys.stderr)
    hold(
        Conversation(
            writers,
            sampling,
            system,
            show=lambda piece: print(piece, end="", flush=True),
            tell=lambda words: print(words, file=sys.stderr, flush=True),
        )
    )
