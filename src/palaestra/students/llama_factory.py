"""Train a student's adapter with LLaMA-Factory, in a separate process.

LLaMA-Factory requires other versions of many packages, so it is installed in a separate environment and only its command is
called. It reads the base model, the examples as a dataset and a YAML file, and writes a LoRA adapter in peft's format. The
prompts are rendered here with the student's chat template, so that it trains on the prompts that our engines send.

With several GPUs `llamafactory-cli` starts torchrun itself. All its processes end with this one (`process_guard`), and every
attempt at a training has a folder of its own, so that a training that is repeated never meets an earlier one.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from pathlib import Path

from palaestra.core.errors import LessonError, SettingsError, UnknownNameError
from palaestra.runs.files import write_text

COMMAND = "llamafactory-cli"
_LOG = "trainer_log.jsonl"
"""The file with a line of progress for each logged step."""
_POLL = 0.2
"""Seconds between two reads of the progress."""
_MAX_CHECK_SECONDS = 300.0
"""Maximum seconds to wait for LLaMA-Factory to read its options."""
_GUARD = str(Path(__file__).with_name("process_guard.py"))
_LAUNCHERS = ("subprocess.CalledProcessError", "torch.distributed.elastic.multiprocessing.errors.ChildFailedError")
"""Exceptions of processes that only report the failure of another one."""
_SETTINGS = {
    "num_train_epochs": "epochs",
    "per_device_train_batch_size": "batch_size",
    "learning_rate": "learning_rate",
    "lora_rank": "rank",
    "seed": "seed",
}
"""Keys that settings of the run determine, with the name of the setting."""
_MANAGED = frozenset([
    "model_name_or_path", "stage", "do_train", "finetuning_type", "lora_alpha", "lora_target", "dataset", "dataset_dir", "template",
    "output_dir", "logging_steps", "resume_from_checkpoint", "pref_beta", "pref_ftx",
])  # fmt: skip
"""Keys that Palaestra sets to exchange data with LLaMA-Factory."""


@dataclass(frozen=True, slots=True)
class TrainingRow:
    """A prompt and a response, with a rejected response for DPO."""

    prompt: str
    response: str
    rejected: str = ""


@dataclass(frozen=True, slots=True)
class LlamaFactory:
    """How to call LLaMA-Factory.

    Arguments:
        command: the command, or its path in another environment.
        overrides: further keys of its YAML file, for example `{"lora_dropout": 0.05}`.

    Raises:
        SettingsError: the command does not exist, or a key is managed by Palaestra.
    """

    command: str = COMMAND
    overrides: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for key in self.overrides:
            if key in _SETTINGS:
                raise SettingsError(f"trainer option '{key}': use the setting '{_SETTINGS[key]}'")
            if key in _MANAGED:
                managed = ", ".join(sorted((*_MANAGED, *_SETTINGS)))
                raise SettingsError(f"trainer option '{key}' is managed by Palaestra, as are {managed}")
        if shutil.which(self.command) is None:
            raise SettingsError(
                f"the command '{self.command}' was not found; install LLaMA-Factory in a separate environment "
                f"(pip install llamafactory) and give its path: --trainer-option command=PATH/{COMMAND}"
            )

    def check(self) -> None:
        """Let LLaMA-Factory read the overrides, without training. This takes as long as its start, some ten seconds.

        Raises:
            UnknownNameError: LLaMA-Factory has no such key.
            SettingsError: LLaMA-Factory rejects a value, or cannot be started.
        """
        keys = _read_keys(self.command, tuple(_to_arguments(self.overrides)))
        for key in self.overrides:
            if key not in keys:
                raise UnknownNameError("trainer option", key, keys)

    def train(
        self,
        model: Path,
        rows: Sequence[TrainingRow],
        folder: Path,
        values: Mapping[str, object],
        on_step: Callable[[int, int, float], None],
    ) -> tuple[list[tuple[int, float]], Path]:
        """Train an adapter; returns the loss by step and the folder of the adapter.

        Arguments:
            model: the folder of the base model.
            folder: has a folder for each attempt (`attempt-1`, `attempt-2`, ...), with dataset, settings, output and adapter.
            values: keys of the YAML file.

        Raises:
            LessonError: LLaMA-Factory failed. The message has its exception; the whole output is in the folder.
        """
        import yaml

        folder = _make_attempt(folder)
        output = folder / "adapter"
        preference = any(row.rejected for row in rows)
        _write_dataset(folder, rows)
        config = {
            "model_name_or_path": str(model),
            "stage": "dpo" if preference else "sft",
            "do_train": True,
            "finetuning_type": "lora",
            "dataset": "lesson",
            "dataset_dir": str(folder),
            "template": "empty",
            "output_dir": str(output),
            "logging_steps": 1,
            "save_strategy": "no",
            "report_to": "none",
            "overwrite_cache": True,
            "preprocessing_num_workers": 1,
            **values,
            **self.overrides,
        }
        write_text(folder / "train.yaml", yaml.safe_dump(config))
        losses = self._run(folder, output / _LOG, on_step)
        if not (output / "adapter_config.json").exists():
            raise LessonError(f"LLaMA-Factory ended without an adapter; its output is in {folder / 'output.txt'}")
        return losses, output

    def _run(self, folder: Path, log: Path, on_step: Callable[[int, int, float], None]) -> list[tuple[int, float]]:
        losses: list[tuple[int, float]] = []
        write_text(folder / "output.txt", "")  # Replaces a link.
        with (folder / "output.txt").open("w") as output:
            process = subprocess.Popen(
                [sys.executable, "-I", _GUARD, str(os.getpid()), self.command, "train", str(folder / "train.yaml")],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=_environment(),
                start_new_session=True,
            )
            try:
                running = True
                while running:
                    running = process.poll() is None
                    for step, total, loss in _read_log(log)[len(losses) :]:
                        losses.append((step, loss))
                        on_step(step, total, loss)
                    time.sleep(_POLL if running else 0)
            except BaseException:
                process.terminate()
                process.wait()
                raise
        if process.returncode:
            text = (folder / "output.txt").read_text(errors="replace")
            raise LessonError(
                f"LLaMA-Factory failed at step {losses[-1][0] if losses else 0} (exit code {process.returncode}): "
                f"{find_exception(text)}; full output: {folder / 'output.txt'}"
            )
        return losses


def _make_attempt(folder: Path) -> Path:
    """Create the folder of the next attempt."""
    attempt = next(path for number in count(1) if not (path := folder / f"attempt-{number}").exists())
    attempt.mkdir(parents=True)
    return attempt


def find_exception(output: str) -> str:
    """Return the line of the last exception in a program's output, or else its last line.

    With several processes a launcher raises another exception afterwards, which is skipped.
    """
    lines = [re.sub(r"^\[rank\d+\]:\s?", "", line) for line in output.splitlines() if line.strip()]
    text = "\n".join(lines)
    exceptions = re.findall(r"^Traceback \(most recent call last\).*(?:\n\s.*)*\n(\S.*)", text, re.MULTILINE)
    own = [line for line in exceptions if not line.startswith(_LAUNCHERS)] or exceptions or lines
    return own[-1].strip()[:300] if own else "it printed nothing"


def _environment() -> dict[str, str]:
    return {**os.environ, "DISABLE_VERSION_CHECK": "1"}


def _to_arguments(options: Mapping[str, object]) -> list[str]:
    """Options of a YAML file as arguments of the command line."""
    arguments = []
    for key, value in options.items():
        values = value if isinstance(value, list | tuple) else [value]
        texts = [item if isinstance(item, str) else json.dumps(item) for item in values if item is not None]
        arguments += [f"--{key}", *texts] if texts else []
    return arguments


@cache
def _read_keys(command: str, arguments: tuple[str, ...]) -> frozenset[str]:
    """Let LLaMA-Factory parse arguments. Returns the keys of its YAML file, from its help."""
    try:
        # Without a GPU it starts no further processes. The help comes last, after errors of the other arguments.
        result = subprocess.run(
            [command, "train", *arguments, "--help"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env={**_environment(), "CUDA_VISIBLE_DEVICES": ""},
            timeout=_MAX_CHECK_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise SettingsError(f"'{command}' did not read its options within {_MAX_CHECK_SECONDS:.0f} seconds") from None
    keys = frozenset(re.findall(r"^ +--(\w+)", result.stdout, re.MULTILINE))
    if result.returncode or not keys:
        raise SettingsError(f"setting 'trainer_kwargs': LLaMA-Factory refused: {find_exception(result.stdout)}")
    # The command line also has the negation of each flag, which the YAML file has not.
    return keys - {f"no_{key}" for key in keys}


def _write_dataset(folder: Path, rows: Sequence[TrainingRow]) -> None:
    """Write the rows as a dataset `lesson` of LLaMA-Factory."""
    entry: dict[str, object] = {"file_name": "lesson.json"}
    if any(row.rejected for row in rows):
        entry |= {"columns": {"prompt": "instruction", "chosen": "chosen", "rejected": "rejected"}, "ranking": True}
        data = [{"instruction": r.prompt, "chosen": r.response, "rejected": r.rejected} for r in rows if r.rejected]
    else:
        entry["columns"] = {"prompt": "instruction", "response": "output"}
        data = [{"instruction": row.prompt, "output": row.response} for row in rows]
    write_text(folder / "lesson.json", json.dumps(data))
    write_text(folder / "dataset_info.json", json.dumps({"lesson": entry}))


def _read_log(path: Path) -> list[tuple[int, int, float]]:
    """The steps, with their total and loss. A line that is being written is left for the next time."""
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    entries = [entry for entry in map(json.loads, lines) if "loss" in entry]
    return [(int(e["current_steps"]), int(e["total_steps"]), float(e["loss"])) for e in entries]
