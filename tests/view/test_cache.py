"""What the viewer remembers of a run until its files change."""

from __future__ import annotations

from pathlib import Path

from stored_runs import teach_run

from palaestra.runs.run import Run
from palaestra.view.cache import MAX_VALUES, recall
from palaestra.view.pages import open_store
from palaestra.view.runs import file_state, read_card


def test_a_value_is_read_again_only_after_the_run_has_written(tmp_path: Path) -> None:
    card = read_card(teach_run(tmp_path / "run"), "run")
    read: list[str] = []

    def phases() -> list[str]:
        with open_store(card) as store:
            read.append("phases")
            return store.phases()

    first = recall(card, "phases", phases)
    with open_store(card) as store:
        # Readers change nothing that counts, also while they read.
        store.phases()
        assert recall(card, "phases", phases) is first
    assert read == ["phases"]
    assert recall(card, "other", lambda: 7) == 7
    before = file_state(card.folder)
    with Run.open(card.folder) as run:
        run.store.add_metrics(1, {"reward": 0.5})
    assert file_state(card.folder) != before
    assert recall(card, "phases", phases) == first
    assert read == ["phases"] * 2
    for number in range(MAX_VALUES):
        recall(card, number, lambda: number)  # noqa: B023  (called at once)
    recall(card, "phases", phases)
    assert len(read) == 3, "the oldest values are forgotten"
