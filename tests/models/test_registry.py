from pathlib import Path

import pytest

from palaestra.core.errors import MissingExtraError, ModelError, SettingsError, UnknownNameError
from palaestra.core.records import Sampling
from palaestra.engines.transformers import TransformersEngine
from palaestra.models import registry as models
from palaestra.models import smollm2
from palaestra.models.registry import LoadedModel


def test_nano_is_small_enough_and_has_a_card() -> None:
    folder = Path(models.locate("nano"))
    assert sum(f.stat().st_size for f in folder.iterdir()) <= 8_000_000
    card = (folder / "README.md").read_text()
    assert "palaestra pretrain" in card
    assert "| addition |" in card


def test_nano_is_an_ordinary_transformers_checkpoint(nano: LoadedModel) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    where = models.locate("nano")
    assert AutoModelForCausalLM.from_pretrained(where).config.model_type == "llama"
    tokenizer = AutoTokenizer.from_pretrained(where)
    chat = [{"role": "user", "content": "What is 12 + 3?"}, {"role": "assistant", "content": "15"}]
    assert tokenizer.apply_chat_template(chat, tokenize=False) == "<|user|>What is 12 + 3?<|end|><|assistant|>15<|end|>"


@pytest.mark.parametrize("text", ["What is 12 + 3?", "Grüße, 世界 \U0001f642", "  two  spaces\nand a line"])
def test_any_text_survives_the_tokenizer(nano: LoadedModel, text: str) -> None:
    assert nano.tokenizer.decode(nano.tokenizer.encode(text, add_special_tokens=False)) == text


def test_every_digit_is_a_token_of_its_own(nano: LoadedModel) -> None:
    assert len(nano.tokenizer.encode("1234567890", add_special_tokens=False)) == 10


def test_an_unknown_model_is_answered_with_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="'nano'"):
        models.check("nanoo")


def test_a_folder_without_a_checkpoint_says_so(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no config\.json"):
        models.check(str(tmp_path))


def test_a_hub_id_that_cannot_be_had_is_one_line() -> None:
    with pytest.raises(ModelError, match="'nobody/nothing'") as caught:
        models.load("nobody/nothing", device="cpu")
    assert "\n" not in str(caught.value)


def test_a_local_checkpoint_is_loaded_by_its_path(tmp_path: Path, nano: LoadedModel) -> None:
    nano.weights.save_pretrained(tmp_path)
    nano.tokenizer.save_pretrained(tmp_path)
    assert models.load(str(tmp_path), device="cpu").weights.config.hidden_size == nano.weights.config.hidden_size


@pytest.mark.parametrize("name", ["nano", "nano-vlm"])
def test_parameters_are_counted_from_the_configuration(name: str) -> None:
    weights = models.load(name, device="cpu").weights
    assert models.count_parameters(name) == sum(p.numel() for p in weights.parameters())


def test_smollm2_without_its_extra_names_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smollm2.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"palaestra\[smollm2\]"):
        smollm2.fetch(tmp_path)


@pytest.mark.parametrize(
    "bad", [{"max_tokens": 0}, {"temperature": -1.0}, {"top_p": 0.0}, {"count": 0}, {"stop": ("",)}]
)
def test_sampling_settings_that_make_no_sense_are_refused(bad: dict[str, object]) -> None:
    with pytest.raises(SettingsError, match=next(iter(bad))):
        Sampling(**bad)  # type: ignore[arg-type]


@pytest.mark.backends
def test_smollm2_is_fetched_converted_checked_and_answers(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    from palaestra.core.records import Event, Message, Request

    monkeypatch.setenv("PALAESTRA_CACHE", str(tmp_path_factory.mktemp("cache")))
    events: list[Event] = []
    where = Path(models.get("smollm2", events.append))
    downloads = [e for e in events if e.phase == "download smollm2" and e.total]
    assert downloads
    assert downloads[-1].done == downloads[-1].total > 90_000_000
    model = models.load("smollm2", device="cpu")
    assert len(model.tokenizer.encode("2026", add_special_tokens=False)) == 4
    answer = TransformersEngine.from_loaded(model).generate(
        [Request((Message("user", "What is the capital of France?"),), Sampling(max_tokens=16))]
    )[0][0]
    assert "Paris" in answer.text  # type: ignore[union-attr]
    (where / "config.json").write_text((where / "config.json").read_text().replace("llama", "lama1"))
    with pytest.raises(ModelError, match="has changed"):
        models.get("smollm2")
