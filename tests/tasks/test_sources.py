"""The reader of published data: the same rows from every format, and one-line errors."""

import gzip
import io
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from palaestra.core.errors import MissingExtraError, TaskError
from palaestra.core.records import ImagePart, Split
from palaestra.tasks import sources
from palaestra.tasks.sources import (
    Source,
    StoredImage,
    file_rows,
    folder_rows,
    has_split,
    hub_rows,
    locate_dataset,
    open_table,
    read_rows,
)
from palaestra.tasks.vision import pictures
from palaestra.tasks.vision.pictures import Images
from palaestra.tasks.vision.render import data_url
from palaestra.tasks.vision.sets import EasyVQA, NaturalBench

ROWS = [{"id": f"{k}", "text": f"row\u2028{k}"} for k in range(3)]
TABLES = ("table", "tables", "saved", "saved apart")
SOURCE = Source("things", "owner/things", "main")


def png(colour: str) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (4, 4), colour).save(file, "PNG")
    return file.getvalue()


def write_rows(folder: Path, form: str, rows: list[dict[str, Any]] = ROWS, split: str = "test") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if form in TABLES:
        _write_table(folder, form, rows, split)
        return
    lines = "\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n\n"
    match form:
        case "lines":
            (folder / f"{split}.jsonl").write_text(lines, encoding="utf-8")
        case "packed lines":
            (folder / f"{split}.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
        case "lines in a .json":
            (folder / f"{split}.json").write_text(lines, encoding="utf-8")
        case "list":
            (folder / f"{split}.json").write_text(json.dumps(rows))
        case "by id":
            held = {row["id"]: {name: value for name, value in row.items() if name != "id"} for row in rows}
            (folder / f"{split}.json").write_text(json.dumps(held))
        case "objects":
            for k, row in enumerate(rows):
                (folder / split / f"part{k % 2}").mkdir(parents=True, exist_ok=True)
                (folder / split / f"part{k % 2}" / f"{k}.json").write_text(json.dumps(row))


def _write_table(folder: Path, form: str, rows: list[dict[str, Any]], split: str) -> None:
    datasets = pytest.importorskip("datasets")
    table = datasets.Dataset.from_list(rows)
    for name in ("image", "Image_0", "Image_1"):
        if name in table.features:
            table = table.cast_column(name, datasets.Image())
    match form:
        case "table":
            table.to_parquet(str(folder / f"{split}.parquet"))
        case "tables":
            for k in range(len(rows)):
                (folder / "data").mkdir(exist_ok=True)
                table.select([k]).to_parquet(str(folder / "data" / f"{split}-{k:05}-of-{len(rows):05}.parquet"))
        case "saved":
            datasets.DatasetDict({split: table, "other": table.select([0])}).save_to_disk(str(folder))
        case "saved apart":
            table.save_to_disk(str(folder / split))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("form", ["lines", "packed lines", "lines in a .json", "list", "by id", "objects", *TABLES])
def test_every_form_of_a_folder_gives_the_same_rows(tmp_path: Path, form: str) -> None:
    write_rows(tmp_path / "things", form)
    assert has_split(tmp_path / "things", "test")
    assert not has_split(tmp_path / "things", "train")
    table = open_table(SOURCE, str(tmp_path / "things"), "test")
    keys = {row["id"]: key for key, _, row in table.scan()}
    assert [dict(table.read(keys[row["id"]])) for row in reversed(ROWS)] == ROWS[::-1]
    rows = list(read_rows(SOURCE, str(tmp_path / "things"), "test"))
    assert sorted((dict(row) for _, row in rows), key=lambda row: row["id"]) == ROWS
    assert len({where for where, _ in rows}) == 3
    assert all(str(tmp_path) in where for where, _ in rows)


def test_the_order_of_locations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "things").mkdir()
    monkeypatch.delenv("PALAESTRA_DATA", raising=False)
    monkeypatch.chdir(tmp_path)  # A folder of that name where one happens to be is not meant.
    assert locate_dataset(SOURCE) == "owner/things"
    assert locate_dataset(SOURCE, "some/one") == "some/one"
    assert locate_dataset(SOURCE, str(tmp_path)) == tmp_path
    monkeypatch.setenv("PALAESTRA_DATA", str(tmp_path))
    assert locate_dataset(SOURCE) == tmp_path / "things"
    assert locate_dataset(SOURCE, "some/one") == "some/one"
    assert locate_dataset(Source("others", "owner/others")) == "owner/others"
    with pytest.raises(TaskError, match=r"PALAESTRA_DATA .*others/"):
        locate_dataset(Source("others"))
    for path in ("/nowhere", "./some/one", "~/no/such", "name"):
        with pytest.raises(TaskError, match=f"{path} .*owner/things"):
            locate_dataset(SOURCE, path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("test.jsonl", b'{"a": 1}\n\n{', "row 3: "),
        ("test.jsonl", b"[1]", "row 1: expected an object"),
        ("test.jsonl", b"\xff\xfe", "cannot be read"),
        ("test.jsonl.gz", b"no gzip", "cannot be read"),
        ("test.jsonl.gz", gzip.compress(b'{"a": 1}\n' * 999, mtime=0)[:-9], "cannot be read"),
        ("test.jsonl.gz", gzip.compress(b'{"a": 1}\n', mtime=0)[:10] + b"\xff" * 20, "cannot be read"),
        ("test.json", b"{", "expected a JSON list"),
        ("test.json", b'"text"', "expected a JSON list"),
        ("test.json", b"{}", "expected a JSON list"),
        ("test.json", b'{"a": {"b": 1}, "c": 2}', "expected a JSON list"),
        ("test.json", b'[{"a": 1}, 2]', "row 2: expected an object"),
        ("test.txt", b"", "no 'test' split"),
    ],
)
def test_errors_of_files_are_one_line(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(TaskError) as caught:
        list(read_rows(SOURCE, str(tmp_path), "test"))
    assert message in str(caught.value)
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_unknown_file_types_and_missing_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TaskError, match=r"\.jsonl, \.jsonl\.gz, \.ndjson, \.json, \.parquet"):
        file_rows(tmp_path / "rows.txt")
    monkeypatch.setattr(sources, "find_spec", lambda name: None)
    (tmp_path / "state.json").write_text("{}")
    for rows in (hub_rows("owner/name"), folder_rows(tmp_path), file_rows(tmp_path / "a.parquet")):
        with pytest.raises(MissingExtraError, match=r"palaestra\[data\]"):
            list(rows)


@pytest.mark.filterwarnings("ignore")
def test_missing_splits_are_named(tmp_path: Path) -> None:
    write_rows(tmp_path, "saved", split="validation")
    with pytest.raises(TaskError, match=r"'test'; .*validation, other"):
        list(read_rows(SOURCE, str(tmp_path), "test"))
    with pytest.raises(TaskError, match="split 'train'"):
        list(folder_rows(tmp_path))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("form", TABLES)
def test_images_of_tables_are_read_on_demand(tmp_path: Path, form: str) -> None:
    image = {"bytes": png("red")[:-4] + b"\0\0\0\0", "path": "red.png"}  # Damaged: decoding it would fail.
    rows = [
        {"question": "what color?", "answer": "red", "image": image},
        {"question": "q", "answer": "no", "image": image},
    ]
    write_rows(tmp_path, form, rows)
    assert all(isinstance(row["image"], StoredImage) for _, row in read_rows(SOURCE, str(tmp_path), "test"))
    for problem in EasyVQA(path=str(tmp_path)).problems(Split.TEST, 1, 0, ["colour", "yes_no"]):
        part = problem.messages[0].content[0]
        assert isinstance(part, ImagePart)
        assert part.url == data_url(image["bytes"])  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("form", ["table", "saved"])
def test_naturalbench_is_read_from_a_folder(tmp_path: Path, form: str) -> None:
    images = {f"Image_{i}": {"bytes": png(("red", "blue")[i]), "path": None} for i in (0, 1)}
    answers = {f"Image_{i}_Question_{q}": "AB"[i != q] for i in (0, 1) for q in (0, 1)}
    row = {"Question_0": "q", "Question_1": "r", "Question_Type": "multiple_choice", **images, **answers}
    write_rows(tmp_path, form, [{"Index": k, **row} for k in range(12)], "train")
    four = NaturalBench(path=str(tmp_path)).problems(Split.TRAIN, 4, 0, ["multiple_choice"])
    urls = [problem.messages[0].content[0].url for problem in four]  # type: ignore[union-attr]
    assert urls == [data_url(png("red")), data_url(png("blue"))] * 2


def test_missing_images_are_named(tmp_path: Path) -> None:
    (tmp_path / "images.zip").write_bytes(b"no archive")
    with pytest.raises(TaskError, match=r"cannot read 0\.png"):
        Images(tmp_path).url("0.png", "row 1")
    (tmp_path / "images.zip").unlink()
    with pytest.raises(TaskError, match=r"0\.png .*not found"):
        Images(tmp_path).url("0.png", "row 1")
    for held, message in (
        ("0.png", "expected an image; got '0.png'"),
        ({"path": "/no/such"}, "cannot be read"),
        (7, "got 7"),
    ):
        with pytest.raises(TaskError, match=f"row 1: .*{message}"):
            Images(None).url(held, "row 1")
    assert Images(None).url({"bytes": png("red")}, "row 1").startswith("data:image/png;base64,")


def test_large_rows_and_images_are_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "MAX_ROW", 1000)
    monkeypatch.setattr(pictures, "MAX_IMAGE", 1000)
    write_rows(tmp_path, "packed lines", [{"id": "0"}, {"id": "1" * 5000}])
    with pytest.raises(TaskError, match=r"test\.jsonl\.gz, row 2: .*most"):
        list(open_table(SOURCE, str(tmp_path), "test").scan())
    with zipfile.ZipFile(tmp_path / "images.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("big.png", b"0" * 5000)
        archive.writestr("small.png", png("red"))
    images = Images(tmp_path)
    assert images.url("small.png", "row 1").startswith("data:image/png;base64,")
    with pytest.raises(TaskError, match=r"big\.png .*5000 bytes"):
        images.url("big.png", "row 2")
