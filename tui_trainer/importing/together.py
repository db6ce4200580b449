"""Keys that mean something only beside each other: the cut of a batch, the precision, cadences, the method.

Each function makes the reader of one such group from the names that a kind has for its parts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tui_trainer.importing.contract import Together, Why
from tui_trainer.importing.conversion import Conversion, alike, off
from tui_trainer.importing.fitting import number, takes, whole

_EFFECTIVE = "training.effective_batch_size"
_MICRO = "training.per_device_train_batch_size"
_ACCUMULATION = "training.gradient_accumulation_steps"
_METHOD = "tuning.method"


def batch(
    micro: tuple[str, ...],
    accumulation: tuple[str, ...],
    *,
    micro_default: int | None = None,
    accumulation_default: int = 1,
    packing: str = "",
) -> Together:
    """Micro-batch x accumulation of one process is what a step learns from; how it is cut is decided by memory here.

    The defaults are those of the other tool. `packing` names its switch: with it, its rows hold several documents.
    """

    def act(done: Conversion) -> None:
        rows, parts = done.first(*micro), done.first(*accumulation)
        m = whole(rows[1]) if rows else micro_default
        a = whole(parts[1]) if parts else accumulation_default
        if (rows is None and parts is None) or m is None or a is None or min(m, a) < 1:
            _singly(done, rows, parts)
            return
        names = [found[0] for found in (rows, parts) if found]
        reason = "rows behind a step; memory decides how they are cut"
        if packing and done.given.get(packing) is True:
            reason = "documents behind a step here, packed rows of several documents there"
        if len(names) == 1 and m * a != whole((rows or parts or ("", 0))[1]):
            reason = f"{m} x {a}: the default there; {reason}"
        done.write(_EFFECTIVE, m * a, *names, reason=reason, product=len(names) == 2)

    def _singly(done: Conversion, rows: tuple[str, Any] | None, parts: tuple[str, Any] | None) -> None:
        for key, found in ((_MICRO, rows), (_ACCUMULATION, parts)):
            if found:
                done.write(key, found[1], found[0], ours=False)

    return Together((*micro, *accumulation), act)


def precision(fp16: str = "fp16", bf16: str = "bf16") -> Together:
    """Two switches that can contradict each other, as our one."""

    def act(done: Conversion) -> None:
        found = [one for name in (bf16, fp16) if (one := done.first(name))]
        names = [name for name, _ in found]
        on = [name for name, value in found if value is True]
        words = [value for _, value in found if not isinstance(value, bool)]
        if not found:
            return
        if len(on) == 2:
            done.leave(Why.DOES_NOT_FIT, "only one of the two can be on", *names)
        elif on:
            done.write("training.mixed_precision", "fp16" if on == [fp16] else "bf16", *names)
        elif words and all(alike(word, "auto") for word in words):
            done.write("training.mixed_precision", "auto", *names)
        elif words:
            done.leave(Why.DOES_NOT_FIT, "must be true, false or auto", *names)
        else:
            done.write("training.mixed_precision", "no", *names, reason="no 16-bit format is on")

    return Together((fp16, bf16), act)


def warmup(ratio: str = "warmup_ratio", steps: str = "warmup_steps") -> Together:
    """A share or a number of steps; in transformers the number wins where it is not 0."""

    def act(done: Conversion) -> None:
        share, count = done.first(ratio), done.first(steps)
        if share and count and not off(count[1]):
            done.leave(Why.NOT_NEEDED, f"{steps} wins over it", ratio)
        elif share:
            part = number(share[1])
            if part is None or not 0 <= part < 1:
                done.leave(Why.DOES_NOT_FIT, "must be a share of all steps, at least 0, below 1", ratio)
            else:
                done.write("training.warmup_steps", part, ratio, reason="a share of all steps")
                if count:
                    done.leave(Why.NOT_NEEDED, f"{ratio} says how many", steps)

    return Together((ratio, steps), act)


def cadence(
    key: str,
    strategies: tuple[str, ...],
    steps: str,
    *,
    epochs: str = "num_train_epochs",
    epochs_default: float = 3.0,
    per_epoch: str = "",
) -> Together:
    """How often something is done: in steps, or once an epoch, which is a share of all steps here."""

    def act(done: Conversion) -> None:
        strategy, count = done.first(*strategies), done.first(steps)
        times = done.first(per_epoch) if per_epoch else None
        if times and not count:
            _share(done, times[0], number(times[1]))
        if not strategy:
            return
        name, value = strategy
        if alike(value, False) or alike(value, "no"):
            if count:
                done.leave(Why.NOT_NEEDED, f"{name} is off", steps)
            done.write(key, 0, name, reason="only at the end")
        elif alike(value, "epoch"):
            if count:
                done.leave(Why.NOT_NEEDED, f"{name} says when", steps)
            _share(done, name, 1)
        elif alike(value, "steps") and count:
            done.write(key, count[1], steps, name, ours=False)
        elif alike(value, "steps"):
            done.leave(Why.ALWAYS, f"how many is not said in the file; {key} says it here", name)
        else:
            done.leave(Why.NOT_SUPPORTED, "once in so many steps or in an epoch is", name)

    def _share(done: Conversion, name: str, times: float | None) -> None:
        total = number(done.given.get(epochs)) or epochs_default
        if times is None or times < 0:
            done.leave(Why.DOES_NOT_FIT, "must be a number, at least 0", name)
        elif (number(done.given.get("max_steps")) or 0) > 0:
            done.leave(Why.NOT_SUPPORTED, f"max_steps decides the length, so epochs are no measure; set {key}", name)
        elif times == 0 or times * total <= 1:
            done.write(key, 0, name, reason="only at the end")
        else:
            reason = f"a share of all steps: {times:g} in each of {total:g} epochs"
            done.write(key, round(1 / (times * total), 6), name, reason=reason)

    names = (*strategies, steps, *((per_epoch,) if per_epoch else ()))
    return Together(names, act)


def every_epochs(key: str, names: tuple[str, ...], epochs: tuple[str, ...], epochs_default: float) -> Together:
    """Once in so many epochs, which is a share of all steps here. `epochs` say how many there are."""

    def act(done: Conversion) -> None:
        found = done.first(*names)
        if not found:
            return
        every = number(found[1])
        told = next((count for name in epochs if (count := number(done.given.get(name)))), None)
        total = told or epochs_default
        if every is None or not every >= 0 or total <= 0:
            done.leave(Why.DOES_NOT_FIT, "must be a number of epochs, at least 0", found[0])
        elif every == 0 or every >= total:
            done.write(key, 0, found[0], reason="only at the end")
        else:
            source = "" if told else ", as the recipe has it"
            reason = f"a share of all steps: every {every:g} of {total:g} epochs{source}"
            done.write(key, round(every / total, 6), found[0], reason=reason)

    return Together(names, act)


def early_stopping(switch: str = "early_stopping", patience: str = "early_stopping_patience") -> Together:
    """A switch and a number, as our one number: 0 is off."""

    def act(done: Conversion) -> None:
        found, count = done.first(switch), done.first(patience)
        if not found:
            return
        key = "evaluation.early_stopping_patience"
        if off(found[1]):
            if count:
                done.leave(Why.NOT_NEEDED, f"{switch} is off", patience)
            done.write(key, 0, switch, reason="0 is off")
        elif count:
            done.write(key, count[1], switch, patience, ours=False)
        else:
            done.leave(Why.NOT_SUPPORTED, f"how many evaluations to wait is not said; set {key}", switch)

    return Together((switch, patience), act)


def loss_on(train_on_all: str) -> Together:
    """Whether what is given is learnt as well (`train_on_inputs`), or only the answers."""

    def act(done: Conversion) -> None:
        found = done.first(train_on_all)
        if not found:
            return
        if isinstance(found[1], bool):
            done.write("task.loss_on", "all" if found[1] else "assistant", train_on_all)
        else:
            done.leave(Why.DOES_NOT_FIT, "must be true or false", train_on_all)

    return Together((train_on_all,), act)


def loss_on_parts(assistant: str = "assistant_only_loss", completion: str = "completion_only_loss") -> Together:
    """Two switches of which at most one is on."""

    def act(done: Conversion) -> None:
        found = [one for name in (assistant, completion) if (one := done.first(name))]
        names = [name for name, _ in found]
        on = [name for name, value in found if value is True]
        if len(on) == 2:
            done.leave(Why.DOES_NOT_FIT, "only one of the two can be on", *names)
        elif on:
            done.write("task.loss_on", "assistant" if on == [assistant] else "completion", *names)
            if takes("task.type", "chat"):
                done.write("task.type", "chat", reason=f"{on[0]} is about turns")
        elif found:
            done.write("task.loss_on", "all", *names)

    return Together((assistant, completion), act)


def method(
    adapter: str = "",
    adapters: Mapping[Any, str] | None = None,
    *,
    four_bit: tuple[str, ...] = (),
    lora: tuple[str, ...] = (),
    model: tuple[str, ...] = (),
    otherwise: str = "",
) -> Together:
    """Which weights move: from the adapter's name, from 4-bit loading, or because the file speaks of LoRA.

    `otherwise` is what the tool does where nothing of this is said, and one of the keys `model` is there.
    """

    def act(done: Conversion) -> None:
        named = done.first(adapter) if adapter else None
        wanted = next((ours for one, ours in (adapters or {}).items() if named and alike(named[1], one)), "")
        if named and not wanted:
            done.leave(Why.REFUSED, "the methods here are full, lora and qlora", adapter)
            return
        bits = next((one for name in four_bit if (one := done.first(name)) and one[1] in (True, 4)), None)
        names = [adapter] if named else []
        if bits and wanted != "full":
            wanted, names = "qlora", [*names, bits[0]]
        if wanted == "qlora" and not takes(_METHOD, "qlora"):
            done.write(_METHOD, "lora", *names, reason="with weights in 16 bits")
            if bits:
                done.leave(Why.NOT_YET, "weights in 4 bits are not there yet; LoRA beside 16 bits is", bits[0])
        elif wanted:
            done.write(_METHOD, wanted, *names)
        elif done.has(*lora) and adapter not in done.given:
            done.write(_METHOD, "lora", reason=f"the file has {next(name for name in lora if done.has(name))}")
        elif otherwise and done.has(*model):
            done.write(_METHOD, otherwise, reason="what it does where the file says nothing else")

    names = (*((adapter,) if adapter else ()), *four_bit)
    return Together(names, act)
