"""Count the graphs that the compiler of torch makes in each part of a run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from tui_trainer.training.compiled import count_compiled_graphs
from tui_trainer.training.session import Session

PARTS = ("__init__", "take_step", "evaluate", "sample")


@contextmanager
def counted_compilations(*, carried_out: bool = True) -> Iterator[dict[str, list[int]]]:
    """Yield the numbers of graphs by part, one for each call.

    With `carried_out` False, graphs are traced and then computed without compiled code.
    """
    found: dict[str, list[int]] = defaultdict(list)
    with ExitStack() as stack:
        for name in PARTS:
            stack.enter_context(patch.object(Session, name, _counting(getattr(Session, name), found[name])))
        if not carried_out:
            stack.enter_context(patch("torch.nn.Module.compile", _compile_eagerly))
        yield found


def _counting(call: Any, found: list[int]) -> Any:
    def counted(*args: Any, **kwargs: Any) -> Any:
        before = count_compiled_graphs()
        try:
            return call(*args, **kwargs)
        finally:
            found.append(count_compiled_graphs() - before)

    return counted


def _compile_eagerly(module: Any, mode: str | None = None) -> None:
    import torch

    module._compiled_call_impl = torch.compile(module._call_impl, backend="eager")
