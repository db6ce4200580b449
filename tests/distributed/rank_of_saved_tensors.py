"""`python -m tests.distributed.rank_of_saved_tensors save|load FOLDER`: one of the processes that write tensors, placed
in many ways, or read what another number of processes has written.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import _StridedShard

from tui_trainer.models.files import shards
from tui_trainer.training.checkpoint import SavedTensors, TensorWriter, separate_sharded
from tui_trainer.training.collectives import gather_tensor
from tui_trainer.training.ranks import join_ranks

FILE = "state.safetensors"
SIZES = {
    "rows": (7, 3),
    "columns": (3, 5),
    "in both": (6, 5),
    "in copies": (8, 2),
    "the same": (4, 4),
    "of one": (1, 4),
    "of nobody": (0, 4),
    "twice along the rows": (8, 3),
    "whole": (3, 3),
    "a number": (),
}


def values(name):
    """All that a tensor holds."""
    count = torch.Size(SIZES[name]).numel()
    first = 100 * list(SIZES).index(name)
    return torch.arange(first, first + count, dtype=torch.bfloat16 if name == "columns" else None).view(SIZES[name])


def placed(count):
    """Each as it lies in so many processes."""
    line = init_device_mesh("cpu", (count,))
    square = init_device_mesh("cpu", (2, count // 2)) if count > 2 else None
    ways = {
        "rows": (line, [Shard(0)]),
        "columns": (line, [Shard(1)]),
        "in both": (square, [Shard(0), Shard(1)]) if square else (line, [Shard(1)]),
        "in copies": (square, [Replicate(), Shard(0)]) if square else (line, [Shard(0)]),
        "the same": (line, [Replicate()]),
        "of one": (line, [Shard(0)]),
        "of nobody": (line, [Shard(0)]),
        "twice along the rows": (square, [_StridedShard(0, split_factor=2), Shard(0)])
        if square
        else (line, [Shard(0)]),
    }
    found = {name: values(name) for name in SIZES}
    for name, (mesh, placements) in ways.items():
        found[name] = distribute_tensor(found[name], mesh, placements, src_data_rank=None)
    return found


def main():
    what, folder = sys.argv[1], Path(sys.argv[2])
    ranks = join_ranks(torch.device("cpu"))
    tensors = placed(ranks.world_size)
    if what == "save":
        out = TensorWriter(folder, ranks)
        at_once, in_parts = separate_sharded(tensors)
        out.write_whole(at_once, FILE)
        out.write_parts(in_parts, FILE)
        assert out.error is None
    else:
        with SavedTensors(shards.all_files_of(folder, FILE)) as saved:
            assert saved.names == tensors.keys()
            for name, tensor in tensors.items():
                found = saved.read_like(name, tensor)
                assert type(found) is type(tensor) and found.dtype == tensor.dtype, name
                assert gather_tensor(found).equal(values(name)), name
    ranks.gathered(None)
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
