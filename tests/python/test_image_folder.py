"""Files as elements, and folders of images: what is listed, how it is split, what is lost."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import penstock
from contract import INLINE, KINDS, PROCESSES, SPAWN, check_checkpoints, each, options, passed
from image_files import encoded, picture
from penstock import Dataset, image


@pytest.fixture
def folder(tmp_path):
    """Three classes of 10, 25 and 40 files, with other things beside them."""
    for name, count in (("cat", 10), ("dog", 25), ("bird", 40)):
        (tmp_path / name / "more").mkdir(parents=True)
        for i in range(count):
            place = tmp_path / name / ("more" if i % 5 == 0 else "")
            kind = (".jpg", ".PNG", ".jpeg")[i % 3]
            (place / f"{i:02}{kind}").write_bytes(f"{name} {i}".encode())
    (tmp_path / "cat" / "notes.txt").write_text("no image")
    (tmp_path / "cat" / ".hidden.jpg").write_text("no image")
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden" / "0.jpg").write_text("no image")
    (tmp_path / "loose.jpg").write_text("in no class")
    return tmp_path


def listed(dataset):
    return [str(element["path"]) for element in dataset]


def wanted_files(folder, name, suffixes=(".jpg", ".PNG", ".jpeg")):
    """Sorted folder by folder, bytewise."""
    found = []
    for entry in sorted(os.listdir(folder / name), key=os.fsencode):
        path = folder / name / entry
        if entry.startswith("."):
            continue
        if path.is_dir():
            found += wanted_files(folder / name, entry, suffixes)
        elif entry.endswith(suffixes):
            found.append(str(path))
    return found


def test_class_names_are_in_the_order_of_labels(folder, tmp_path_factory):
    dataset = Dataset.image_folder(folder)
    assert dataset.class_names == ["bird", "cat", "dog"]
    for element in dataset:
        name = dataset.class_names[element["label"]]
        assert str(element["path"]).startswith(f"{folder}/{name}/")
    train = Dataset.image_folder(folder, validation_split=0.2, subset="training")
    chain = train.shuffle(seed=1).map(lambda element: element["label"]).batch(4).repeat()
    assert chain.class_names == ["bird", "cat", "dog"]
    two = Dataset.image_folder(folder, classes=["dog", "cat"])
    assert two.class_names == ["dog", "cat"]
    assert Dataset.zip(two, two).class_names == ["dog", "cat"]
    with pytest.raises(penstock.InvalidArgument, match="other classes: "):
        _ = dataset.concatenate(two).class_names
    with pytest.raises(penstock.InvalidArgument, match=r"no source of range.* has named classes"):
        _ = Dataset.range(3).class_names
    with pytest.raises(penstock.NotFound, match=r"Dataset\.files takes images without classes"):
        _ = Dataset.image_folder(folder / "cat" / "more").class_names
    linked = tmp_path_factory.mktemp("linked")
    (linked / "owl").mkdir()
    (linked / "cat").symlink_to(folder / "cat")
    assert Dataset.image_folder(linked).class_names == ["owl"]
    assert Dataset.image_folder(linked, follow_links=True).class_names == ["cat", "owl"]


@each((INLINE, *KINDS[1:], SPAWN), ())
def test_folders_are_classes(folder, mode):
    dataset = Dataset.image_folder(folder)
    assert len(dataset) == 75
    with dataset.build(**options(mode)) as feed:
        elements = list(feed)
    assert [list(element) for element in elements] == [["image", "label", "path"]] * 75
    for name, label in (("bird", 0), ("cat", 1), ("dog", 2)):
        of_class = [e for e in elements if e["label"] == label]
        assert [e["path"] for e in of_class] == wanted_files(folder, name)
        for element in of_class:
            number = int(os.path.basename(element["path"])[:2])
            assert bytes(element["image"]) == f"{name} {number}".encode()
            assert element["label"].dtype == np.int64


def test_classes_and_names_can_be_chosen(folder):
    dataset = Dataset.image_folder(str(folder) + "//", classes=["dog", "cat"])
    assert [int(e["label"]) for e in dataset] == [0] * 25 + [1] * 10
    some = Dataset.image_folder(folder, include="*.jpeg")
    assert listed(some) == [
        p for n in ("bird", "cat", "dog") for p in wanted_files(folder, n, (".jpeg",))
    ]
    assert len(Dataset.image_folder(folder, include="*.txt")) == 1


def test_all_formats_that_are_decoded_are_listed(tmp_path):
    (tmp_path / "cat").mkdir()
    kinds = {"bmp": "BMP", "GIF": "GIF", "jpeg": "JPEG", "pgm": "PPM", "ppm": "PPM", "webp": "WEBP"}
    for suffix, kind in kinds.items():
        pixels = picture(9, 6, channels=1 if suffix == "pgm" else 3)
        (tmp_path / "cat" / f"{suffix.lower()}.{suffix}").write_bytes(encoded(pixels, kind))
    (tmp_path / "cat" / "a.tif").write_bytes(b"II*\0")
    decoded = list(Dataset.image_folder(tmp_path).map(image.decode()))
    names = [os.path.basename(str(element["path"])) for element in decoded]
    assert names == ["bmp.bmp", "gif.GIF", "jpeg.jpeg", "pgm.pgm", "ppm.ppm", "webp.webp"]
    assert all(element["image"].shape == (6, 9, 3) for element in decoded)


@pytest.mark.parametrize("split", [0.1, 0.2, 0.5, 0.85])
def test_a_split_has_every_file_once_and_is_balanced(folder, split):
    options = {"validation_split": split, "seed": 3}
    training = Dataset.image_folder(folder, subset="training", **options)
    validation = Dataset.image_folder(folder, subset="validation", **options)
    one, other = set(listed(training)), set(listed(validation))
    assert not one & other
    assert one | other == set(listed(Dataset.image_folder(folder)))
    assert len(training) + len(validation) == 75
    for label, count in enumerate((40, 10, 25)):
        part = sum(1 for e in validation if e["label"] == label)
        assert abs(part - count * split) <= 0.5
    again = Dataset.image_folder(folder, subset="validation", **options)
    assert listed(again) == sorted(other, key=listed(Dataset.image_folder(folder)).index)
    # Of each class by itself, whichever classes are taken.
    dogs = Dataset.image_folder(folder, classes=["dog"], subset="validation", **options)
    assert set(listed(dogs)) == {path for path in other if "/dog/" in path}
    options["seed"] = 4
    assert set(listed(Dataset.image_folder(folder, subset="validation", **options))) != other


def test_links_are_followed_when_asked(folder):
    os.symlink(folder / "dog", folder / "wolf")
    os.symlink(folder / "dog" / "01.PNG", folder / "cat" / "zz.png")
    assert len(Dataset.image_folder(folder)) == 76
    linked = Dataset.image_folder(folder, follow_links=True)
    assert len(linked) == 101
    assert [int(e["label"]) for e in linked][-25:] == [3] * 25
    os.symlink(folder, folder / "dog" / "back")
    assert len(Dataset.image_folder(folder)) == 76
    with pytest.raises(penstock.InvalidArgument, match="more than 64 deep"):
        len(Dataset.image_folder(folder, follow_links=True))


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"root": "nowhere"}, penstock.NotFound, "no such folder: nowhere"),
        ({"classes": ["cat", "cow"]}, penstock.NotFound, "no such folder: .*/cow"),
        ({"include": "*.gif"}, penstock.NotFound, "no image in the folders of"),
        ({"root": "cat/more"}, penstock.NotFound, "has no folder"),
        ({"validation_split": 0.2}, penstock.InvalidArgument, "give 'training' or 'validation'"),
        ({"subset": "training"}, penstock.InvalidArgument, "needs validation_split"),
        (
            {"validation_split": 1, "subset": "training"},
            penstock.InvalidArgument,
            "not between 0 and 1",
        ),
        (
            {"validation_split": 0.5, "subset": "test"},
            penstock.InvalidArgument,
            "subset is 'test'",
        ),
        ({"classes": []}, penstock.InvalidArgument, "classes is empty"),
        ({"classes": "cat"}, penstock.InvalidArgument, "give a list of names"),
        ({"seed": -1}, penstock.InvalidArgument, "seed is -1"),
        ({"follow_links": 1}, penstock.InvalidArgument, "follow_links is 1"),
    ],
)
def test_what_cannot_be_listed(folder, arguments, error, says):
    root = arguments.pop("root", "")
    root = root if root == "nowhere" else folder / root
    with pytest.raises(error, match=says):
        len(Dataset.image_folder(root, **arguments))


def test_files_with_and_without_labels(folder):
    pattern = str(folder / "dog" / "*.jpg")
    paths = sorted(str(p) for p in (folder / "dog").glob("*.jpg"))
    plain = list(Dataset.files(pattern))
    assert [list(e) for e in plain] == [["bytes", "path"]] * len(paths)
    assert [e["path"] for e in plain] == paths
    labelled = list(Dataset.files(paths[::-1], labels=np.arange(len(paths))))
    assert [e["path"] for e in labelled] == paths[::-1]
    assert [int(e["label"]) for e in labelled] == list(range(len(paths)))
    for element in labelled:
        with open(element["path"], "rb") as file:
            assert bytes(element["bytes"]) == file.read()
    with pytest.raises(penstock.InvalidArgument, match="3 labels for 7 files"):
        len(Dataset.files(pattern, [1, 2, 3]))
    with pytest.raises(penstock.InvalidArgument, match="labels is 'x'"):
        Dataset.files(pattern, ["x"])
    with pytest.raises(penstock.NotFound):
        len(Dataset.files(str(folder / "*.none")))
    with pytest.raises(penstock.InvalidArgument, match="empty"):
        Dataset.files([])


def test_names_that_are_no_utf8(tmp_path):
    try:
        (tmp_path / "a").mkdir()
        (tmp_path / "a" / os.fsdecode(b"\xff.jpg")).write_bytes(b"x")
    except OSError:
        pytest.skip("this file system has no such names")
    (element,) = Dataset.image_folder(tmp_path)
    assert element["path"] == str(tmp_path / "a") + "/\\xff.jpg"
    assert bytes(element["image"]) == b"x"


@each((INLINE, *KINDS[1:], SPAWN), ())
def test_a_file_that_vanished_is_lost_alone(folder, mode):
    dataset = Dataset.image_folder(folder).shuffle(seed=2)
    with dataset.on_error("skip").batch(10).build(**options(mode)) as feed:
        os.remove(folder / "dog" / "01.PNG")  # the files are listed
        (folder / "new").mkdir()
        (folder / "new" / "1.jpg").write_bytes(b"")
        paths = [path for batch in feed for path in batch["path"]]
        assert len(paths) == 74
        (loss,) = feed.stats()["losses"]
        assert "dog/01.PNG" in loss[2]
    with dataset.build(workers=0) as feed, pytest.raises(penstock.NotFound, match=r"dog/01\.PNG"):
        list(feed)


def test_the_order_restarts_anywhere(folder):
    dataset = Dataset.image_folder(folder, classes=["cat", "dog"]).shuffle(seed=5).batch(7)
    check_checkpoints(lambda **options: dataset.build(**options), restored=(*KINDS, SPAWN))


def test_behind_a_stream_files_are_read_by_workers(folder):
    dataset = Dataset.image_folder(folder).filter(is_a_cat).batch(4)
    with dataset.build(**options(PROCESSES)) as feed:
        assert [label for batch in passed(feed) for label in batch["label"]] == [1] * 10


def is_a_cat(element):
    return element["label"] == 1


def test_an_empty_subset_is_empty(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "0.png").write_bytes(encoded(picture(4, 4), "PNG"))
    split = {"validation_split": 0.2}
    assert len(Dataset.image_folder(tmp_path, subset="validation", **split)) == 0
    training = Dataset.image_folder(tmp_path, subset="training", **split)
    assert [e["image"].shape for e in training.map(image.decode())] == [(4, 4, 3)]


def test_states_name_the_listing(folder):
    one = Dataset.image_folder(folder, validation_split=0.2, subset="training", seed=1).batch(4)
    other = Dataset.image_folder(folder, validation_split=0.2, subset="training", seed=2).batch(4)
    with one.build(workers=0) as feed:
        state = json.loads(json.dumps(feed.state()))
    with other.build(workers=0) as feed, pytest.raises(penstock.InvalidArgument):
        feed.restore(state)


def make_old(folder):
    """Folders that changed long ago: a recent change is not kept."""
    for path, _, _ in os.walk(folder, followlinks=True):
        os.utime(path, (1_000_000_000, 1_000_000_000))


def test_the_listing_is_kept_beside_the_folder(folder):
    root = folder / "root"
    root.mkdir()
    for name in ("cat", "dog", "bird"):
        (folder / name).rename(root / name)
    make_old(root)
    dataset = Dataset.image_folder(root, index="beside")
    wanted = listed(Dataset.image_folder(root))
    assert listed(dataset) == wanted
    kept = folder / "root.penstock-index"
    assert kept.stat().st_size < sum(map(len, wanted))
    # What is not listed again is what was kept: a name that nobody saw.
    (root / "dog" / "new.jpg").write_bytes(b"new")
    os.utime(root / "dog", (1_000_000_000, 1_000_000_000))
    assert listed(Dataset.image_folder(root, index="beside")) == wanted
    # Another time, and the folder is listed: it alone, and other queries see it too.
    (root / "cat" / "new.jpg").write_bytes(b"new")
    os.utime(root / "cat", (1_000_000_000, 1_000_000_000))
    os.utime(root / "dog", (1_000_000_001, 1_000_000_001))
    for _ in range(2):
        names = [
            os.path.relpath(path, root)
            for path in listed(Dataset.image_folder(root, index="beside"))
        ]
        assert "dog/new.jpg" in names
        assert "cat/new.jpg" not in names
    dogs = Dataset.image_folder(root, ["dog"], include="new*", index="beside")
    assert listed(dogs) == [str(root / "dog" / "new.jpg")]
    split = {"validation_split": 0.2, "index": "beside"}
    parts = [Dataset.image_folder(root, subset=s, **split) for s in ("training", "validation")]
    assert sum(map(len, parts)) == 76
    kept.write_bytes(b"PSTKDIR1 damaged")
    assert len(Dataset.image_folder(root, index="beside")) == 77
    assert kept.stat().st_size > 100


def test_a_folder_that_has_just_changed_is_not_kept(folder):
    """Its next change may have the same time."""
    root = folder / "dog"
    for i in range(20):
        (root / "more" / f"new{i}.jpg").write_bytes(b"")
        assert len(Dataset.image_folder(root, index="beside")) == 5 + i + 1


def test_patterns_keep_the_listing_of_the_folder_before_them(folder, monkeypatch):
    make_old(folder)
    monkeypatch.chdir(folder)
    plain = listed(Dataset.files("*/*.jpg"))
    assert plain
    assert listed(Dataset.files("*/*.jpg", index="beside")) == plain
    assert (folder.parent / f"{folder.name}.penstock-index").exists()
    assert listed(Dataset.files(["dog/*.jpg"], index="beside")) == [p for p in plain if "dog" in p]
    assert (folder / "dog.penstock-index").exists()
    (folder / "cat" / "new.jpg").write_bytes(b"")
    os.utime(folder / "cat", (1_000_000_000, 1_000_000_000))
    assert listed(Dataset.files("*/*.jpg", index="beside")) == plain
    (folder / "cat" / "newer.jpg").write_bytes(b"")
    assert len(listed(Dataset.files("*/*.jpg", index="beside"))) == len(plain) + 2
    assert len(Dataset.image_folder(".", index="beside")) == 77
    with pytest.raises(penstock.InvalidArgument, match="index is 'here'; give 'beside'"):
        Dataset.image_folder(folder, index="here")
    with pytest.raises(penstock.InvalidArgument, match="index is True"):
        Dataset.files("*/*.jpg", index=True)


def test_a_read_only_place_only_costs_the_time(folder):
    make_old(folder)
    (folder / "dog.penstock-index").mkdir()
    for _ in range(2):
        assert len(Dataset.image_folder(folder / "dog", index="beside")) == 5


@pytest.mark.slow
def test_a_hundred_thousand_files_are_listed_in_a_second(tmp_path):
    root = tmp_path / "root"
    for name in range(100):
        (root / f"class{name:03}").mkdir(parents=True)
        for i in range(1000):
            os.mknod(root / f"class{name:03}" / f"{i:05}.jpg")
    make_old(root)
    for how in ({}, {"index": "beside"}, {"index": "beside"}):
        begin = time.perf_counter()
        assert len(Dataset.image_folder(root, **how)) == 100_000
        assert time.perf_counter() - begin < 5  # 0.1 measured; others use the machine
    assert (tmp_path / "root.penstock-index").stat().st_size < 1_000_000


@pytest.mark.slow
def test_a_resnet_learns_the_classes_of_a_folder(tmp_path):
    pytest.importorskip("torch")
    random = np.random.default_rng(0)
    for label, colour in enumerate([(210, 60, 60), (60, 210, 60), (60, 60, 210)]):
        (tmp_path / f"class{label}").mkdir()
        for number in range(30):
            noisy = np.array(colour) + random.normal(0, 20, (*random.integers(30, 60, 2), 3))
            made = Image.fromarray(np.clip(noisy, 0, 255).astype(np.uint8))
            made.save(tmp_path / f"class{label}" / f"{number}.jpg")
    program = Path(__file__).resolve().parents[2] / "examples" / "imagenet.py"
    command = [sys.executable, program, tmp_path, "6", "32", "8"]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=100,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    right = [float(part) for part in re.findall(r"epoch \d: ([\d.]+)% right", done.stdout)]
    assert len(right) == 6
    assert right[-1] > 90


def test_a_class_that_comes_twice_is_refused(tmp_path):
    with pytest.raises(penstock.errors.InvalidArgument, match="'rose' comes twice"):
        Dataset.image_folder(tmp_path, classes=["rose", "daisy", "rose"])
