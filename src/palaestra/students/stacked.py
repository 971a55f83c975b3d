"""Many copies of a small student that learn side by side: their weights are stacked, and every layer is one batched product.

Each student has its own examples, order and optimizer state, and learns exactly what `SupervisedStudent` learns, up to
rounding. A lesson environment uses them to try hundreds of lessons at once on one GPU.

Axes: K students, N examples, B examples of a batch, T tokens, D width, V vocabulary, H heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import contextmanager
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.nn.functional import cross_entropy, embedding, scaled_dot_product_attention, silu

from palaestra.core.errors import ModelError
from palaestra.core.records import Example
from palaestra.core.seeding import Seeds, plan_batches
from palaestra.models.families import position_limit
from palaestra.students.batches import IGNORE, encode
from palaestra.students.supervised import Supervision, schedule_learning_rate, supervision_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from palaestra.models.registry import LoadedModel

_MAX_TOKENS, _CPU_TOKENS = 1 << 18, 1 << 12
"""Maximum number of tokens of one pass without gradients, over all students. On a CPU, a pass should fit its cache."""
_TOLERANCE = 1e-3
"""Maximum difference of a logit from the model's own."""


class StackedStudents:
    """Copies of one small Llama model with float32 weights.

    Arguments:
        model: as loaded by `palaestra.models.registry.load`.
        count: number of students.
        supervision: how they learn; by default as a single student does.
        device: empty: a GPU if there is one.

    Raises:
        ModelError: the model has another architecture.
    """

    def __init__(
        self, model: LoadedModel, count: int, supervision: Supervision | None = None, device: str = ""
    ) -> None:
        self.count, self.tokenizer, self.config = count, model.tokenizer, model.weights.config
        self.supervision = supervision or supervision_for(model.weights, "full")
        self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        parameters = {name: p.detach().float() for name, p in model.weights.named_parameters()}
        if self.config.model_type != "llama" or any(name.endswith(".bias") for name in parameters):
            raise ModelError(
                f"{model.name} is a {self.config.model_type} model; expected a text model of the family llama without "
                "biases, such as nano"
            )
        self._model = {name: p.to(self.device)[None].expand(count, *p.shape) for name, p in parameters.items()}
        self.weights = self._base = self._model
        self._ids: list[tuple[int, ...]] = []
        self._prompt_lengths: list[int] = []
        self._tables: tuple[torch.Tensor, torch.Tensor] | None = None
        self._frequencies = model.weights.model.rotary_emb.inv_freq.float().to(self.device)
        self.reset()
        self._check(model)

    def reset(self) -> None:
        """Give every student the weights of the model."""
        self._base = self._model
        self.restore()

    def keep_as_base(self) -> None:
        """Make the current weights those that `restore` restores."""
        self._base = {name: p.clone() for name, p in self.weights.items()}

    def restore(self, sources_K: Sequence[int] | None = None) -> None:
        """Give every student its base weights.

        Arguments:
            sources_K: the student whose base weights each gets; by default its own.
        """
        index_K = torch.arange(self.count) if sources_K is None else torch.tensor(sources_K)
        self.weights = {name: p[index_K.to(self.device)] for name, p in self._base.items()}

    def store(self, examples: Sequence[Example]) -> np.ndarray:
        """Tokenize examples and return their rows, which `learn` and `measure` take.

        Raises:
            LessonError: an example is too long for the students, or has an image.
        """
        limit = position_limit(self.config) or 1 << 30
        rows = [encode(example, self.tokenizer, limit) for example in examples]
        first = len(self._ids)
        self._ids += [row.prompt_ids + row.response_ids for row in rows]
        self._prompt_lengths += [len(row.prompt_ids) for row in rows]
        self._tables = None
        return np.arange(first, len(self._ids))

    def drop(self, count: int) -> None:
        """Forget all stored examples but the first `count`."""
        del self._ids[count:], self._prompt_lengths[count:]
        self._tables = None

    def learn(self, rows_KN: Sequence[np.ndarray], seeds: Sequence[Seeds]) -> None:
        """Train each student on its own examples, as `palaestra.students.supervised.fine_tune` does.

        Arguments:
            rows_KN: rows of stored examples, the same number for each student.
            seeds: for the order of the examples of each student.
        """
        supervision = self.supervision
        batches_KSB = [self._plan(rows, seed) for rows, seed in zip(rows_KN, seeds, strict=True)]
        steps = len(batches_KSB[0])
        parameters = {name: p.requires_grad_() for name, p in self.weights.items()}
        optimizer = torch.optim.AdamW(
            list(parameters.values()), weight_decay=supervision.weight_decay, fused=self.device.type == "cuda"
        )
        with self._fast_products():
            for step in range(steps):
                rate = supervision.learning_rate * schedule_learning_rate(step, steps, supervision.warmup)
                optimizer.param_groups[0]["lr"] = rate
                ids_KBT, labels_KBT = self._gather([batches[step] for batches in batches_KSB])
                logits_KBTV = self.compute_logits(ids_KBT[:, :, :-1])
                labels_KL = labels_KBT[:, :, 1:].flatten(1)
                losses_KL = cross_entropy(
                    logits_KBTV.flatten(0, 2), labels_KL.flatten(), ignore_index=IGNORE, reduction="none"
                ).view(self.count, -1)
                # The sum over students: each student's weights only get the gradient of its own mean loss.
                (losses_KL.sum(1) / (labels_KL != IGNORE).sum(1)).sum().backward()  # type: ignore[no-untyped-call]
                self._clip(list(parameters.values()))
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
        self.weights = {name: p.detach() for name, p in parameters.items()}

    @torch.no_grad()
    def measure(self, rows_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Measure every student on stored examples.

        Returns:
            solved_KN: whether greedy decoding reproduces the response.
            logprobs_KN: the mean log-prob of the response's tokens.
        """
        lengths_N = np.array([len(self._ids[row]) for row in rows_N])
        order_N = np.argsort(lengths_N, kind="stable")  # Little padding in a part.
        tokens = _CPU_TOKENS if self.device.type == "cpu" else _MAX_TOKENS
        size = max(1, tokens // (self.count * int(lengths_N.max())))
        solved_KN = np.zeros((self.count, len(rows_N)), dtype=bool)
        logprobs_KN = np.zeros((self.count, len(rows_N)), dtype=np.float32)
        with self._fast_products():
            for start in range(0, len(rows_N), size):
                part = order_N[start : start + size]
                ids_1NT, labels_1NT = self._gather([rows_N[part]])
                labels_L = labels_1NT[0, :, 1:].flatten()
                answered_A = (labels_L != IGNORE).nonzero()[:, 0]
                logits_KAV = self.compute_logits(ids_1NT[:, :, :-1].expand(self.count, -1, -1), answered_A)
                labels_A = labels_L[answered_A]
                right_KA = logits_KAV.argmax(-1) == labels_A
                chosen_KA = logits_KAV.log_softmax(-1).gather(-1, labels_A.expand(self.count, -1)[..., None])[..., 0]
                example_A = (answered_A // (ids_1NT.shape[-1] - 1)).expand(self.count, -1)
                sums_KN = chosen_KA.new_zeros(3, self.count, len(part))
                for sums, values in zip(
                    sums_KN, (right_KA.float(), chosen_KA, torch.ones_like(chosen_KA)), strict=True
                ):
                    sums.scatter_add_(1, example_A, values)
                solved_KN[:, part] = (sums_KN[0] == sums_KN[2]).cpu().numpy()
                logprobs_KN[:, part] = (sums_KN[1] / sums_KN[2]).cpu().numpy()
        return solved_KN, logprobs_KN

    def compute_logits(self, ids_KBT: torch.Tensor, places_A: torch.Tensor | None = None) -> torch.Tensor:
        """The next-token logits of sequences that are padded on the right, by student.

        Arguments:
            places_A: compute them only at these places of the flattened sequences.
        """
        config, weights = self.config, self.weights
        count, batch, length = ids_KBT.shape
        table_KVD = weights["model.embed_tokens.weight"]
        offsets_K11 = torch.arange(count, device=self.device)[:, None, None] * table_KVD.shape[1]
        x = embedding((ids_KBT + offsets_K11).flatten(1), table_KVD.flatten(0, 1))  # K, B * T, D
        angles_TF = torch.arange(length, device=self.device)[:, None] * self._frequencies
        cos_TF, sin_TF = (torch.cat([f(angles_TF)] * 2, -1) for f in (torch.cos, torch.sin))
        heads, shared = config.num_attention_heads, config.num_key_value_heads

        def project(x: torch.Tensor, name: str) -> torch.Tensor:
            return torch.bmm(x, weights[name].transpose(1, 2))

        def normalize(x: torch.Tensor, name: str) -> torch.Tensor:
            scale = (x.square().mean(-1, keepdim=True) + config.rms_norm_eps).rsqrt()
            scaled: torch.Tensor = x * scale * weights[name][:, None]
            return scaled

        def split(x: torch.Tensor, count_H: int) -> torch.Tensor:
            return x.view(count * batch, length, count_H, -1).transpose(1, 2)

        for number in range(config.num_hidden_layers):
            layer = f"model.layers.{number}"
            normed = normalize(x, f"{layer}.input_layernorm.weight")
            query = _rotate(split(project(normed, f"{layer}.self_attn.q_proj.weight"), heads), cos_TF, sin_TF)
            key = _rotate(split(project(normed, f"{layer}.self_attn.k_proj.weight"), shared), cos_TF, sin_TF)
            value = split(project(normed, f"{layer}.self_attn.v_proj.weight"), shared)
            mixed = scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=heads != shared)
            mixed = mixed.transpose(1, 2).reshape(count, batch * length, -1)
            x = x + project(mixed, f"{layer}.self_attn.o_proj.weight")
            normed = normalize(x, f"{layer}.post_attention_layernorm.weight")
            gate = silu(project(normed, f"{layer}.mlp.gate_proj.weight"))
            x = x + project(gate * project(normed, f"{layer}.mlp.up_proj.weight"), f"{layer}.mlp.down_proj.weight")
        output = "lm_head.weight" if "lm_head.weight" in weights else "model.embed_tokens.weight"
        if places_A is not None:
            return project(normalize(x[:, places_A], "model.norm.weight"), output)
        return project(normalize(x, "model.norm.weight"), output).view(count, batch, length, -1)

    def _plan(self, rows_N: np.ndarray, seeds: Seeds) -> list[np.ndarray]:
        """The rows of every batch, over all epochs."""
        lengths = [len(self._ids[row]) for row in rows_N]
        orders = (seeds.derive("order", epoch).generator() for epoch in range(self.supervision.epochs))
        return [
            rows_N[batch] for order in orders for batch in plan_batches(lengths, self.supervision.batch_size, order)
        ]

    def _gather(self, rows_KB: Sequence[np.ndarray]) -> tuple[torch.Tensor, torch.Tensor]:
        """The token ids `[K, B, T]` and labels of stored rows. Smaller batches are filled with rows without labels."""
        if self._tables is None:
            self._tables = self._build_tables()
        ids_NT, labels_NT = self._tables
        width = max(map(len, rows_KB))
        filled_KB = np.stack(
            [np.pad(rows, (0, width - len(rows)), constant_values=len(ids_NT) - 1) for rows in rows_KB]
        )
        length = max(len(self._ids[row]) for row in set(chain.from_iterable(rows_KB)))
        index_KB = torch.from_numpy(filled_KB).to(self.device)
        return ids_NT[index_KB, :length], labels_NT[index_KB, :length]

    def _build_tables(self) -> tuple[torch.Tensor, torch.Tensor]:
        """All stored rows, padded on the right, and a last one without labels."""
        length = max(map(len, self._ids))
        ids_NT = np.zeros((len(self._ids) + 1, length), dtype=np.int64)
        labels_NT = np.full_like(ids_NT, IGNORE)
        for row, (ids, prompt) in enumerate(zip(self._ids, self._prompt_lengths, strict=True)):
            ids_NT[row, : len(ids)] = ids
            labels_NT[row, prompt : len(ids)] = ids[prompt:]
        return torch.from_numpy(ids_NT).to(self.device), torch.from_numpy(labels_NT).to(self.device)

    def _clip(self, parameters: Sequence[torch.Tensor]) -> None:
        """Clip the gradient of each student by its own norm."""
        gradients = [p.grad for p in parameters if p.grad is not None]
        norms_K = torch.stack([gradient.flatten(1).square().sum(1) for gradient in gradients]).sum(0).sqrt()
        scale_K = (self.supervision.clip / (norms_K + 1e-6)).clamp(max=1.0)
        for gradient in gradients:
            gradient.mul_(scale_K.view(-1, *[1] * (gradient.ndim - 1)))

    @contextmanager
    def _fast_products(self) -> Iterator[None]:
        """Allow TF32 on GPUs. Otherwise float32 products would not use the matrix units."""
        before = torch.backends.cuda.matmul.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = True
        try:
            yield
        finally:
            torch.backends.cuda.matmul.allow_tf32 = before

    @torch.no_grad()
    def _check(self, model: LoadedModel) -> None:
        """Compare the logits of a short sequence with the model's own forward pass."""
        ids = torch.arange(2, 18)[None] % self.config.vocab_size
        expected = model.weights(input_ids=ids.to(model.weights.device)).logits.float().to(self.device)
        logits = self.compute_logits(ids.to(self.device).expand(self.count, 1, -1))
        if not torch.allclose(logits[:1], expected[None], atol=_TOLERANCE, rtol=_TOLERANCE):
            raise ModelError(f"{model.name} computes its logits in another way than a plain Llama model")


def _rotate(x: torch.Tensor, cos_TF: torch.Tensor, sin_TF: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    return x * cos_TF + torch.cat([-second, first], -1) * sin_TF
