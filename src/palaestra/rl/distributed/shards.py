"""Sharded checkpoints: each process writes its shards with torch.distributed.checkpoint, in the format of safetensors.

A checkpoint is read by any number of processes. Each reads the rows that it needs; one that shards nothing reads all. There is no
pickle in it.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path

import torch
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from palaestra.core.errors import StorageError
from palaestra.rl.distributed.ranks import is_sharded, rank, world_size


def write_shards(folder: Path, state: Mapping[str, torch.Tensor]) -> None:
    """Write the shards of this process into a folder. All processes must call this, with the same names.

    Raises:
        StorageError: the processes do not see the same folder.
    """
    # Safetensors has no slices of a scalar.
    tensors = {name: value.detach() if value.ndim else value.detach().reshape(1) for name, value in state.items()}
    writer = HuggingFaceStorageWriter(str(folder), save_distributed=True)
    save(tensors, storage_writer=writer)
    if rank() == 0 and (count := len(list(folder.glob("*.safetensors")))) != world_size():
        raise StorageError(
            f"{folder} has the shards of {count} processes; expected {world_size()}: put the run on a file system that all "
            "machines share"
        )


def read_shards(folder: Path, prefix: str, like: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Read the tensors whose names start with `prefix`, without it.

    Arguments:
        like: by name, a sharded tensor if the result should be sharded like it. The others are read as a whole.
    """
    reader = HuggingFaceStorageReader(str(folder))
    state = {}
    for name, stored in reader.read_metadata().state_dict_metadata.items():
        if name.startswith(prefix):
            dtype, model = stored.properties.dtype, like.get(name.removeprefix(prefix))  # type: ignore[union-attr]
            if model is not None and is_sharded(model):
                state[name] = torch.zeros_like(model, dtype=dtype)
            else:
                state[name] = torch.zeros(stored.size, dtype=dtype)  # type: ignore[union-attr]
    with warnings.catch_warnings():  # About the missing process group, which is not needed: nobody plans for others.
        warnings.filterwarnings("ignore", "torch.distributed is disabled")
        load(state, storage_reader=reader, no_dist=True)
    return {name.removeprefix(prefix): tensor for name, tensor in state.items()}
