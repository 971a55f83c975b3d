import shutil
from pathlib import Path

import pytest

from palaestra.core.errors import UnknownNameError
from palaestra.models import embedded, registry
from palaestra.models.embedded import EMBEDDED


def test_shipped_models_are_registered_with_their_context() -> None:
    for row in EMBEDDED.values():
        assert (row.name in registry.MODELS) == row.is_shipped
    config = registry.load("nano", device="cpu").weights.config
    assert (config.max_position_embeddings, config.hidden_size) == (EMBEDDED["nano"].context, EMBEDDED["nano"].width)


def test_embedded_models_are_small() -> None:
    files = [file for row in EMBEDDED.values() for file in row.folder.rglob("*") if file.is_file()]
    assert 0 < sum(file.stat().st_size for file in files) <= 25_000_000


def test_a_model_without_weights_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nano = registry.locate("nano")
    monkeypatch.setattr(embedded, "ASSETS", tmp_path)
    with pytest.raises(UnknownNameError):
        registry.locate("nano-coder")
    shutil.copytree(nano, tmp_path / "nano_coder")
    assert registry.locate("nano-coder") == str(tmp_path / "nano_coder")
