"""Faces, end to end: train on folders as CASIA-WebFace lies, measure on a folder in LFW's layout, by the commands."""

import itertools
import json
import random

import numpy as np
import pytest
from PIL import Image, ImageDraw

from commands import succeeded, typed
from tuplet import load

#: The people of the test and their numbers of images.
PEOPLE = {f"Person_{letter}": count for letter, count in zip("ABCDEFGHIJ", [1, 3, 2, 1, 4, 2, 3, 1, 2, 2], strict=True)}


def draw_face(path, person, shot):
    """Draw a face: the person decides on its shape and colours, the shot on place and light."""
    own, chance = random.Random(person), random.Random(f"{person} {shot}")
    image = Image.new("RGB", (60, 60), tuple(chance.randrange(60, 120) for _ in "RGB"))
    draw, x, y = ImageDraw.Draw(image), 30 + chance.randrange(-3, 4), 30 + chance.randrange(-3, 4)
    wide, tall, apart, mouth = own.randrange(14, 24), own.randrange(18, 27), own.randrange(5, 10), own.randrange(3, 11)
    skin, hair, eye = (tuple(own.randrange(20, 250) for _ in "RGB") for _ in range(3))
    draw.ellipse((x - wide, y - tall, x + wide, y + tall), skin)
    draw.chord((x - wide, y - tall, x + wide, y + tall), 200, 340, hair)
    for side in (-1, 1):
        draw.ellipse((x + side * apart - 3, y - 6, x + side * apart + 3, y), eye)
    draw.rectangle((x - mouth, y + 10, x + mouth, y + 12), (120, 20, 20))
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with webface, lfw and the list of pairs, ten folds of two and two."""
    folder = tmp_path_factory.mktemp("faces")
    for person, shot in itertools.product(range(10), range(1, 4)):
        draw_face(folder / f"webface/{45 + person:07d}/{shot:03d}.jpg", person, shot)
    for person, count in PEOPLE.items():
        for shot in range(1, count + 1):
            draw_face(folder / f"lfw/{person}/{person}_{shot:04d}.jpg", person, shot)
    draw, several = random.Random(0), [person for person, count in PEOPLE.items() if count > 1]
    lines = ["10\t2"]
    for _ in range(10):
        lines += [f"{person}\t1\t2" for person in draw.sample(several, 2)]
        lines += ["{}\t1\t{}\t1".format(*draw.sample(list(PEOPLE), 2)) for _ in range(2)]
    (folder / "lfw/pairs.txt").write_text("\n".join(lines) + "\n")
    (folder / "lfw/peopleDevTest.txt").write_text(
        "".join([f"{len(PEOPLE)}\n", *(f"{p}\t{n}\n" for p, n in PEOPLE.items())])
    )
    return folder


SHORT = (
    *("--steps", "2", "--batch-size", "8", "--device", "cpu"),
    *("--decay-start", "1", "--decay-every", "1", "--test-share", "0.2", "--validation", "0.2"),
)


@pytest.fixture(scope="module")
def run(folder):
    done = typed("train", "webface", "--out", "run", "--recipe", "npair_faces", *SHORT, cwd=folder)
    assert "run/best" in succeeded(done)
    return folder / "run"


def vectors_of(run, folder):
    paths = sorted((folder / "lfw").glob("*/*.jpg"))
    found = load(run / "best").embed(paths).double().numpy()
    return {path.stem: vector for path, vector in zip(paths, found, strict=True)}


def literal_verification(vectors, lines):
    """The accuracy of each fold, with the middle one of the best thresholds on the other folds."""
    pairs = []
    for number, fields in enumerate(line.split("\t") for line in lines):
        one, other = (fields[0], fields[0]) if len(fields) == 3 else (fields[0], fields[2])
        distance = np.linalg.norm(vectors[f"{one}_000{fields[1]}"] - vectors[f"{other}_000{fields[-1]}"])
        pairs.append((number // 4, -distance, one == other))
    accuracies = []
    for fold in range(10):
        scores = sorted(score for f, score, _ in pairs if f != fold)
        cuts = [scores[0] - 1, *((a + b) / 2 for a, b in itertools.pairwise(scores) if a < b), scores[-1] + 1]
        right = [sum((score > cut) == same for f, score, same in pairs if f != fold) for cut in cuts]
        best = [cut for cut, count in zip(cuts, right, strict=True) if count == max(right)]
        cut = best[(len(best) - 1) // 2]
        accuracies.append(np.mean([(score > cut) == same for f, score, same in pairs if f == fold]))
    return accuracies


def test_a_run_is_measured_by_the_protocols_of_lfw(folder, run):
    metrics = json.loads(succeeded(typed("evaluate", "run", "lfw", "--json", cwd=folder)))
    vectors = vectors_of(run, folder)
    accuracies = literal_verification(vectors, (folder / "lfw/pairs.txt").read_text().splitlines()[1:])
    assert metrics["pairs"] == 40
    assert metrics["pair_accuracy"] == pytest.approx(np.mean(accuracies))
    assert metrics["pair_accuracy_stderr"] == pytest.approx(np.std(accuracies, ddof=1) / 10**0.5)

    first = {person: vectors[f"{person}_0001"] for person in PEOPLE}
    others = [(name[:-5], vector) for name, vector in vectors.items() if not name.endswith("_0001")]
    nearest = [min(first, key=lambda known: np.linalg.norm(first[known] - vector)) for _, vector in others]
    right = [found == person for found, (person, _) in zip(nearest, others, strict=True)]
    assert metrics["rank1"] == pytest.approx(np.mean(right))

    known = {person for person, count in PEOPLE.items() if count > 1}
    best = {}
    for person, probe in first.items():
        best[person] = min((np.linalg.norm(member - probe), name) for name, member in others)
    limit = min(best[person][0] for person in PEOPLE if person not in known)  # no impostor may be named
    named = [best[person][0] < limit and best[person][1] == person for person in known]
    assert metrics["dir_at_far_0.01"] == pytest.approx(np.mean(named))
    assert metrics["identification"] == {"known_people": 7, "unknown_people": 3, "probes": 11}


def test_the_table_says_what_the_numbers_are(folder, run):
    done = typed("evaluate", "run", "lfw", cwd=folder)
    assert done.exit_code == 0
    rows = {line.split("  ")[0]: line for line in done.stdout.splitlines()}
    assert "in ten folds; standard error " in rows["Pair accuracy"]
    assert "Closed set: " in rows["Rank-1"]
    assert "Open set: " in rows["DIR@1%"]


def test_without_a_list_of_pairs_the_table_says_so(folder, run, tmp_path):
    (tmp_path / "run").symlink_to(run)
    for person in ("George_W_Bush", "Person_B"):
        for shot in (1, 2):
            draw_face(tmp_path / f"lfw/{person}/{person}_{shot:04d}.jpg", person, shot)
    done = typed("evaluate", "run", "lfw", cwd=tmp_path)
    assert done.exit_code == 0
    assert "Rank-1" in done.stdout
    assert "DIR@1%" not in done.stdout  # nobody is unknown
    assert "lfw has no pairs.txt, so no pairs are verified" in done.stderr


def test_the_joint_loss_of_casia_trains_on_colour(folder):
    small = ("--size", "32", "--resize", "36", "--model-options", "channels=3")
    done = typed("train", "webface", "--out", "colour", "--recipe", "casia", *SHORT, *small, cwd=folder)
    assert done.exit_code == 0, done.output
    embedder = load(folder / "colour/best")
    assert embedder.preprocessing.mean == (127.5,) * 3
    assert embedder.embed([folder / "lfw/Person_A/Person_A_0001.jpg"]).shape == (1, 320)
