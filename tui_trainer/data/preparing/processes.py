"""The processes that read and encode rows beside the one that prepares them.

They are new ones, not forks: a fork of a process with threads can hang. A tokenizer is loaded once, where the rows are
prepared, and travels with the reader: loading it imports torch, for which each process would take 4 s and 700 MB.
"""

import os
import pickle
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path
from typing import Any, Self, TypeVar

from tui_trainer.data.columns.reader import Reader
from tui_trainer.units import MIB

Task = TypeVar("Task")
Result = TypeVar("Result")

# What a process is worth: the imports that it begins with take as long as the work on so much data, and so much memory.
BYTES_EACH, MEMORY_EACH, MOST_PROCESSES = 16 * MIB, 256 * MIB, 32
# Tasks that wait for each process, so that none is idle while a result is taken up.
_AHEAD = 3
_known: tuple[Path, Any] = (Path(), None)  # of a process that works for another: where its reader lies, and the reader


def worth_processes(data_bytes: int, cores: int, available_bytes: int) -> int:
    """How many processes are worth it for so much data, on so many cores and with so much memory: 1 or more."""
    return max(1, min(cores, MOST_PROCESSES, data_bytes // BYTES_EACH, available_bytes // 2 // MEMORY_EACH))


class Processes:
    """Some processes, which start at once. A context manager; `folder` is where they find what they need."""

    def __init__(self, count: int, folder: Path) -> None:
        self._count, self._folder, self._readers = count, folder, 0

    def __enter__(self) -> Self:
        import multiprocessing

        context = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(self._count, context, initializer=_begin)
        for _ in range(self._count):
            self._pool.submit(os.getpid)
        return self

    def __exit__(self, *_: object) -> None:
        # Also where the work is given up: what runs takes a second at the most, and may write into the folder.
        self._pool.shutdown(wait=True, cancel_futures=True)

    def each(
        self, work: Callable[[Any, Task], Result], reader: Reader | None, tasks: Iterable[Task]
    ) -> Iterator[tuple[Task, Result]]:
        """Each task with what `work` makes of it with the reader as it is now, in order. Raises what `work` raises."""
        self._readers += 1
        path = self._folder / f"reader-{self._readers}"
        path.write_bytes(pickle.dumps(reader, protocol=pickle.HIGHEST_PROTOCOL))
        waiting: deque[tuple[Task, Future[Result]]] = deque()
        try:
            for task in tasks:
                waiting.append((task, self._pool.submit(_work, path, work, task)))
                if len(waiting) >= _AHEAD * self._count:
                    first, result = waiting.popleft()
                    yield first, result.result()
            while waiting:
                first, result = waiting.popleft()
                yield first, result.result()
        finally:
            for _, result in waiting:
                result.cancel()


def _begin() -> None:
    """In a new process: it makes no sound, ends with the one that began it, and uses one core."""
    import multiprocessing
    from threading import Thread

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    silent = open(os.devnull, "w")  # noqa: PTH123, SIM115  # for the life of the process
    sys.stdout = sys.stderr = silent
    parent = multiprocessing.parent_process()

    def end_with_parent() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    Thread(target=end_with_parent, daemon=True).start()


def _work(path: Path, work: Callable[[Any, Task], Result], task: Task) -> Result:
    global _known
    if _known[0] != path:
        _known = path, pickle.loads(path.read_bytes())
    return work(_known[1], task)
