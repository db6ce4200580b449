"""Runs of several processes on the CPU, as forks."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tests.distributed.forked_ranks import ForkedRanks
from tui_trainer.launching import torchrun
from tui_trainer.runs.folder import RunFolder


@pytest.fixture
def forked_ranks(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """`started`: each group of this test, `ends`: the exit codes of those that another one followed. `prelude(group,
    rank)`: Python that runs before a process does."""
    nothing: Callable[[int, int], str] = lambda group, rank: ""  # noqa: E731
    told = SimpleNamespace(started=[], ends=[], prelude=nothing)

    def start(folder, plan, log, node_rank=0, rendezvous=""):
        number = len(told.started)
        for earlier in reversed(told.started):
            if (earlier.killed.parent, earlier.node_rank) == (folder.root, node_rank):
                # What is still there would write beside the next group.
                told.ends.append([rank.wait(1) for rank in earlier.ranks])
                break
        group = ForkedRanks(folder, plan, log, lambda rank: told.prelude(number, rank), node_rank, rendezvous)
        told.started.append(group)
        return group

    monkeypatch.setattr(torchrun, "_start", start)
    return told


@pytest.fixture
def reference_group(forked_ranks: SimpleNamespace, reference_run: Callable[..., RunFolder]) -> Callable[..., RunFolder]:
    """`reference_run` of several processes, which are none of those that this test has `started`."""

    def make(changes: dict[str, Any]) -> RunFolder:
        before = len(forked_ranks.started)
        folder = reference_run(changes)
        del forked_ranks.started[before:]
        return folder

    return make
