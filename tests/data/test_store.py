"""Decoding in workers, the disk cache under kills and rivals, and batches."""

import contextlib
import os
import signal
import subprocess
import sys
import tarfile
import threading
import warnings
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from PIL import Image

from tuplet import data as tuplet_data
from tuplet.data import Dataset, from_features, from_images, hold, load, store
from tuplet.data.batching import _send, batches
from tuplet.data.cache import fingerprint
from tuplet.errors import OptionWarning
from tuplet.images.crop import CentreCrop
from tuplet.sampling import HardClassSampler, NPairSampler
from tuplet.threads import map_in_threads
from waiting import wait_for


@pytest.fixture
def photos(tmp_path):
    """Forty images of many sizes in four class folders."""
    rng = np.random.default_rng(0)
    for number in range(40):
        path = tmp_path / "photos" / f"class{number % 4}" / f"{number:02d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        height, width = rng.integers(20, 60, 2)
        Image.fromarray(rng.integers(0, 256, (height, width, 3), np.uint8)).save(path)
    return tmp_path / "photos"


@pytest.mark.parametrize("folder", [False, True])
def test_the_number_of_workers_changes_nothing(photos, tmp_path, folder):
    data = tuplet_data.open(photos)
    stores = [load(data, 24, tmp_path / str(n) if folder else None, workers=n) for n in (0, 1, 2)]
    for other in stores[1:]:
        assert torch.equal(other.values, stores[0].values)
        assert torch.equal(other.aspects, stores[0].aspects)
    image = data.image(7)
    assert stores[0].aspects[7] == torch.tensor(image.width / image.height)
    expected = np.asarray(image.resize((24, 24), Image.Resampling.BICUBIC))
    assert (stores[0].values[7].permute(1, 2, 0).numpy() == expected).all()


def spoil(photos):
    """Ten kinds of damage, in the files 0 to 9."""
    files = sorted(photos.rglob("*.png"), key=lambda path: path.name)[:10]
    whole = files[0].read_bytes()
    big = Image.new("RGB", (8, 8))
    damage = [b"", b"plain text", whole[:30], whole[: len(whole) // 2], whole[:-20], bytes(1000)]
    for file, content in zip(files, damage, strict=False):
        file.write_bytes(content)
    files[6].unlink()
    files[7].unlink()
    files[7].mkdir()
    big.save(files[8], "GIF")
    files[8].write_bytes(files[8].read_bytes()[:20])
    files[9].write_bytes(whole[:60] + b"\xff" + whole[61:])
    return files


@pytest.mark.parametrize("workers", [0, 2])
def test_bad_files_stop_the_run_or_are_skipped_counted_and_named(photos, tmp_path, workers):
    data = tuplet_data.open(photos)
    bad = {str(file) for file in spoil(photos)}
    with pytest.raises(ValueError, match=r"class0/00\.png"):
        load(data, 24, workers=workers)
    for folder in (None, tmp_path / "cache", tmp_path / "cache"):
        with pytest.warns(UserWarning, match="10 of 40 images were skipped") as caught:
            good = load(data, 24, folder, workers=workers, unreadable="skip")
        assert len(good) == len(good.data) == len(good.values) == 30
        assert len(good.skipped) == 10
        # From Python 3.12 on there may be another, of processes that are forked beside threads.
        [said] = [str(warning.message) for warning in caught if warning.category is OptionWarning]
        assert said == f"10 of 40 images were skipped, first: {next(iter(good.skipped.values()))}"
        for number, sentence in good.skipped.items():
            assert data.path(number) in bad
            assert data.path(number) in sentence
        assert not bad & {good.data.path(i) for i in range(30)}
        first = good.data.image(0).resize((24, 24), Image.Resampling.BICUBIC)
        assert (good.values[0].permute(1, 2, 0).numpy() == np.asarray(first)).all()
    with pytest.raises(ValueError, match=r"class0/00\.png"):
        load(data, 24, tmp_path / "cache", workers=workers)


def test_the_cache_is_used_again_and_a_changed_file_makes_a_new_one(photos, tmp_path, monkeypatch):
    data = tuplet_data.open(photos)
    first = load(data, 24, tmp_path / "cache", workers=0)
    before = fingerprint(data, [CentreCrop(24, 24, "square")])
    with monkeypatch.context() as patch:
        patch.setattr(store, "_decode", lambda *_: pytest.fail("the cache was there"))
        again = load(data, 24, tmp_path / "cache", workers=0)
    assert torch.equal(first.values, again.values)
    Image.new("RGB", (30, 30)).save(data.path(0))
    assert fingerprint(data, [CentreCrop(24, 24, "square")]) != before != fingerprint(data, [CentreCrop(24, 24)])
    assert load(data, 24, tmp_path / "cache", workers=0).values[0].max() == 0


def test_a_cache_leaves_one_folder_and_its_lock(photos, tmp_path):
    load(tuplet_data.open(photos), 24, tmp_path / "cache", workers=2)
    names = sorted(path.name for path in (tmp_path / "cache").iterdir())
    assert len(names) == 2
    assert names[1] == f"{names[0]}.lock"


#: Leave out the warning that two workers are too many for one core.
ONE_CORE = ("-W", "ignore:This DataLoader will create")
STOPPED = """
import signal, sys, time
from tuplet import data as tuplet_data
from tuplet.data import store
signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(143))
read = store._Crops.__getitem__
store._Crops.__getitem__ = lambda self, index: (time.sleep(0.05), read(self, index))[1]
for _ in store._decode(tuplet_data.open(sys.argv[1]), [store.CentreCrop(24, 24)], 2):
    print("read", flush=True)
"""


def test_sigterm_to_all_processes_prints_no_traceback(photos):
    """Slurm, systemd and `timeout` send it to the workers too."""
    command = [sys.executable, *ONE_CORE, "-c", STOPPED, photos]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, start_new_session=True, **pipes) as process:
        assert [process.stdout.readline() for _ in range(9)] == ["read\n"] * 9  # of both workers
        os.killpg(process.pid, signal.SIGTERM)
        assert (process.wait(60), process.stderr.read()) == (143, "")


STOPPED_WHILE_WORKERS_START = """
import os, signal, sys
from tuplet import data as tuplet_data
from tuplet.data import store
os.register_at_fork(after_in_parent=lambda: signal.raise_signal(signal.SIGINT))
try:
    for _ in store._decode(tuplet_data.open(sys.argv[1]), [store.CentreCrop(24, 24)], 2):
        print("read")
except KeyboardInterrupt:
    print("stopped")
"""


def test_ctrl_c_while_workers_start_is_not_lost(photos):
    """Python ignores what a signal raises in the functions that it calls before and after a fork."""
    command = [sys.executable, *ONE_CORE, "-c", STOPPED_WHILE_WORKERS_START, photos]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout, done.stderr) == (0, "stopped\n", "")


FILL = """
import sys, time
from tuplet import data as tuplet_data
from tuplet.data import store
decode = store._decode
def slow(*args):
    for number, item in enumerate(decode(*args)):
        if number == int(sys.argv[4]):
            time.sleep(600)
        time.sleep(float(sys.argv[3]))
        yield item
    open(f"{sys.argv[2]}.decoded", "a").write("x")
store._decode = slow
loaded = tuplet_data.load(tuplet_data.open(sys.argv[1]), 24, sys.argv[2], workers=0)
print(int(loaded.values.long().sum()))
"""


def fill(photos, folder, delay, hangs_at=-1):
    command = [sys.executable, "-c", FILL, str(photos), str(folder), str(delay), str(hangs_at)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def partial_of(folder, pid):
    """The bytes that this process, and not one killed before it, has written aside."""
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # a descriptor may be closed while we look
            target = os.readlink(descriptor)
            if target.startswith(str(folder)) and target.endswith("pixels0.u8"):
                return os.path.getsize(target)
    return 0


def test_a_fill_that_is_killed_leaves_nothing_to_be_taken_for_a_cache(photos, tmp_path, soak):
    folder = tmp_path / "cache"
    expected = int(load(tuplet_data.open(photos), 24, workers=0).values.long().sum())
    for kill in range(16 if soak else 2):
        run = fill(photos, folder, 0.02, hangs_at=36)
        written = 40 * 3 * 24 * 24 * (kill % 8) // 10
        wait_for(lambda pid=run.pid, least=written: partial_of(folder, pid) > least)
        run.send_signal(signal.SIGKILL)
        run.wait()
    assert not [path for path in folder.iterdir() if path.suffix not in (".lock", ".partial")]
    loaded = load(tuplet_data.open(photos), 24, folder, workers=0)
    assert int(loaded.values.long().sum()) == expected
    assert not list(folder.glob("*.partial"))


def test_two_processes_fill_a_cache_once(photos, tmp_path):
    folder = tmp_path / "cache"
    expected = int(load(tuplet_data.open(photos), 24, workers=0).values.long().sum())
    runs = [fill(photos, folder, 0.03) for _ in range(3)]
    outputs = [run.communicate(timeout=300)[0] for run in runs]
    assert [int(output) for output in outputs] == [expected] * 3
    assert (tmp_path / "cache.decoded").read_text() == "x"


def test_a_disk_that_is_too_small_gets_one_sentence(photos, tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 1000})())
    with pytest.raises(OSError, match=r"the cache of 40 images needs 0\.0 GiB and .* has 0\.0 GiB free; make room"):
        load(tuplet_data.open(photos), 24, tmp_path / "cache", workers=0)


def test_a_cache_that_was_tampered_with_gets_one_sentence(photos, tmp_path):
    data = tuplet_data.open(photos)
    load(data, 24, tmp_path / "cache", workers=0)
    (pixels,) = (tmp_path / "cache").glob("*/pixels0.u8")
    os.truncate(pixels, 1000)
    with pytest.raises(ValueError, match="holds 1,000 bytes for 40 images; delete that folder"):
        load(data, 24, tmp_path / "cache", workers=0)
    (pixels.parent / "facts.json").write_text("{")
    with pytest.raises(ValueError, match=r"the cache .* cannot be read \(Expecting .*\); delete that folder"):
        load(data, 24, tmp_path / "cache", workers=0)


def test_a_cache_that_cannot_be_made_gets_one_sentence(photos, tmp_path, monkeypatch):
    data, file = tuplet_data.open(photos), tmp_path / "file"
    file.write_text("")
    with pytest.raises(NotADirectoryError, match="file is a file; give a folder for the cache"):
        load(data, 24, file, workers=0)
    with pytest.raises(OSError, match=r"below could not be written \(.*Not a directory.*\); give another folder"):
        load(data, 24, file / "below", workers=0)


def test_arrays_and_features_are_taken_as_they_are():
    pixels = torch.randint(0, 256, (6, 8, 8), dtype=torch.uint8)
    loaded = load(from_images(pixels, [0, 0, 1, 1, 2, 2]))
    assert torch.equal(loaded.values[:, 1], pixels)
    assert loaded.values.untyped_storage().data_ptr() == pixels.untyped_storage().data_ptr()
    vectors = load(from_features(torch.randn(6, 3), [0, 0, 1, 1, 2, 2]))
    assert vectors.values.shape == (6, 3)
    assert torch.equal(hold(vectors.data).features, vectors.values)


def test_arrays_on_disk_are_told_apart_by_their_content(tmp_path):
    one, two = (from_images(torch.full((2, 9, 6), shade, dtype=torch.uint8), [0, 1]) for shade in (1, 2))
    for data, shade in ((one, 1), (two, 2), (one, 1)):
        loaded = load(data, 4, tmp_path, workers=0)
        assert loaded.values.unique().tolist() == [shade]
        assert loaded.aspects.tolist() == pytest.approx([6 / 9] * 2)


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_images_of_tars_on_disk_are_told_apart(photos, tmp_path, mode):
    """A plain tar by its place and date, one that is compressed by the content of its files."""
    stores = []
    for name in ("one", "other"):
        with tarfile.open(tmp_path / f"{name}.tar", mode) as tar:
            tar.add(photos, "photos")
        data = tuplet_data.open(tmp_path / f"{name}.tar")
        stores.append(load(data, 24, tmp_path / "cache", workers=0).values)
        assert torch.equal(stores[-1], load(data, 24, workers=0).values)
        Image.new("RGB", (30, 30)).save(sorted(photos.rglob("*.png"))[0])
    assert not torch.equal(*stores)


def test_known_aspects_are_kept(photos):
    data = tuplet_data.open(photos)
    squashed = Dataset(data.labels, data.class_names, data.images, aspects=torch.full((40,), 1.25))
    assert load(squashed, 24, workers=0).aspects.tolist() == [1.25] * 40


def test_bad_requests_get_one_sentence(photos):
    data = tuplet_data.open(photos)
    with pytest.raises(ValueError, match="unreadable is 'ignore'"):
        load(data, unreadable="ignore")
    with pytest.raises(ValueError, match="no examples to load"):
        load(data.select([]))


@pytest.mark.parametrize("folder", [False, True])
def test_a_dataset_without_one_readable_image_gets_one_sentence(photos, tmp_path, folder):
    data = tuplet_data.open(photos).select([0, 1])
    for i in range(2):
        Path(data.path(i)).write_bytes(b"plain text")
    with pytest.raises(ValueError, match=r"none of the 2 images can be loaded, first: image .*00\.png cannot be read"):
        load(data, 24, tmp_path / "cache" if folder else None, workers=0, unreadable="skip")


@pytest.mark.parametrize("size", [0, -3, 4.5])
def test_a_size_that_is_none_gets_one_sentence(photos, size):
    with pytest.raises(ValueError, match=f"size is {size} and resize {size}; both must be positive integers"):
        load(tuplet_data.open(photos), size)
    with pytest.raises(ValueError, match=f"size is {size} and resize {size}; both must be positive integers"):
        load(from_images(torch.zeros(2, 8, 8, dtype=torch.uint8), [0, 1]), size)


@pytest.mark.parametrize("workers", [0, 2])
def test_decoding_draws_no_random_numbers(photos, workers):
    """A run that finds its cache must see the same random numbers as the run that filled it."""
    before = torch.get_rng_state()
    load(tuplet_data.open(photos), 8, workers=workers)
    assert torch.equal(torch.get_rng_state(), before)


def test_names_that_are_no_unicode_can_be_cached(tmp_path):
    folder = tmp_path / "set" / "ant"
    folder.mkdir(parents=True)
    Image.new("RGB", (4, 4)).save(tmp_path / "1.png")
    os.link(tmp_path / "1.png", os.fsencode(folder) + b"/caf\xe9.png")
    data = tuplet_data.open(tmp_path / "set")
    assert load(data, 8, tmp_path / "cache").values.shape == (1, 3, 8, 8)


def test_an_image_skipped_for_its_size_is_read_once_the_limit_is_raised(photos, tmp_path, monkeypatch):
    data = tuplet_data.open(photos)
    monkeypatch.setattr("tuplet.images.limits.MAX_PIXELS", 1500)
    with pytest.warns(UserWarning, match="of 40 images were skipped"):
        load(data, 8, tmp_path / "cache", workers=0, unreadable="skip")
    monkeypatch.undo()
    assert len(load(data, 8, tmp_path / "cache", workers=0, unreadable="skip")) == 40


def test_images_can_be_read_where_there_are_no_file_locks():
    """Windows has no fcntl; only filling a cache needs it."""
    script = "import sys; sys.modules['fcntl'] = None; import tuplet.data, tuplet.models, tuplet.sampling"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_a_device_without_room_gets_one_sentence(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (1000, 2000))
    loaded = load(from_features(torch.randn(600, 3), [0] * 600))
    with pytest.raises(ValueError, match=r"600 examples of \(3,\) need 0\.0 GiB and cuda has 0\.0 GiB free"):
        loaded.to("cuda")


def test_what_lies_on_one_gpu_is_sent_to_another():
    """There may be none here: the tensor is a stand-in."""
    values = Mock(device=torch.device("cuda:0"))
    assert _send(values, torch.device("cuda:0")) is values
    values.to.assert_not_called()
    assert _send(values, torch.device("cuda:1")) is values.to.return_value
    values.pin_memory.assert_not_called()


def test_batches_are_the_examples_that_the_sampler_names():
    data = from_features(torch.arange(24.0)[:, None], [i // 4 for i in range(24)])
    sampler = NPairSampler(data.labels, pairs=3)
    chosen = list(sampler)
    sampler.set_epoch(0)
    for batch, indices in zip(batches(load(data), sampler, "cpu"), chosen, strict=True):
        assert batch.index.tolist() == indices
        assert batch.values[:, 0].tolist() == indices
        assert batch.labels.tolist() == [i // 4 for i in indices]
        assert len(batch.aspects) == 6


def test_reading_ahead_keeps_order_works_in_a_thread_and_passes_errors_on():
    here = threading.get_ident()
    drawn = []

    def items():
        for number in range(5):
            drawn.append(number)
            yield number

    for received, (number, thread) in enumerate(map_in_threads(lambda n: (n, threading.get_ident()), items(), 1, 1)):
        assert number == received
        assert thread != here
        assert len(drawn) <= received + 2
    with pytest.raises(ZeroDivisionError):
        list(map_in_threads(lambda n: 1 / n, [1, 0], 1, 1))


def test_a_sampler_drawn_ahead_resumes_exactly():
    """The state is that of the batches received, though the sampler has drawn one more and the model has moved on."""
    labels = [i // 4 for i in range(80)]
    weights = torch.randn(80, 4, generator=torch.Generator().manual_seed(0))

    def run(sampler, moves, start, count):
        received = []
        for step, batch in enumerate(map_in_threads(lambda indices: indices, sampler, 1, 1), start):
            received.append(batch)
            moves.append(step)
            if len(received) == count:
                return received, {**sampler.state_dict(), "batch": start + count}
        return received, None

    def sampler(moves):
        return HardClassSampler(labels, lambda i: weights[i].roll(len(moves), 1), pairs=4, candidates=12)

    moves: list[int] = []
    whole, _ = run(sampler(moves), moves, 0, 10)
    moves = []
    first, state = run(sampler(moves), moves, 0, 4)
    resumed = sampler(moves)
    resumed.load_state_dict(state)
    second, _ = run(resumed, moves, 4, 6)
    assert first + second == whole


def test_loading_is_silent_where_all_is_well(photos):
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        warnings.filterwarnings("ignore", "This DataLoader will create 2 worker")  # on a machine with one core
        load(tuplet_data.open(photos), 16, workers=2)
