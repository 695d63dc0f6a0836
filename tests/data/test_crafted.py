"""Data files that are made to fail end in a sentence, in bounded time and memory."""

import resource
import time

import numpy as np
import pytest

import crafted
from tuplet import data
from tuplet.data.readers.matlab import read_mat

REASONS = {
    "none.npz": r"none\.npz has no vectors: its features are \(0, 16\); save it again",
    "overflow.npz": r"its shape \(1099511627776, 1099511627776\) takes [0-9,]* bytes and it has 0",
    "large.npz": r"its shape \(17179869184, 16\) takes",
    "negative.npz": "cannot be read",
    "columns.csv": "has no column 'path'; its columns are column 0, .*, column 19, …: rename one",
    "cars_annos_nested/cars_annos.mat": "Cars196 .* is damaged .* lie over 32 deep in each other",
    "cars_annos_packed/cars_annos.mat": "is damaged .* it unpacks to over 67,108,864 bytes",
    "cars_annos_parts/cars_annos.mat": "is damaged .* it has over 500,000 elements side by side",
}


def test_crafted_data_are_refused_in_a_moment(tmp_path):
    for name, content in crafted.data_files().items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
        begun, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with pytest.raises(ValueError, match=REASONS[name]) as caught:
            data.open(path.parent if "/" in name else path)
        assert "\n" not in str(caught.value)
        assert time.process_time() - begun < 10, name  # minutes without the limits, a second with them
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000, name


@pytest.mark.parametrize("shape", [(0, 16), (2**40, 2**40), (2**63, 1)])
def test_crafted_arrays_are_refused(tmp_path, shape):
    (tmp_path / "x.npy").write_bytes(crafted.npy(shape))
    np.save(tmp_path / "labels.npy", np.arange(0))
    with pytest.raises(ValueError, match=r"x\.npy (has no vectors|cannot be read \(its shape)"):
        data.open(tmp_path / "x.npy")


def test_a_mat_file_may_have_some_depth_and_parts():
    inner = crafted.mat_cell(crafted.mat_cell(crafted.mat_cell()), name=b"nested")
    assert read_mat(crafted.mat(inner)) == {"nested": [[[]]]}
    deep = crafted.mat_cell()
    for _ in range(32):
        deep = crafted.mat_cell(deep)
    read_mat(crafted.mat(deep))
    with pytest.raises(ValueError, match="over 32 deep"):
        read_mat(crafted.mat(crafted.mat_cell(deep)))


def test_a_link_to_a_pipe_is_not_waited_for(tmp_path):
    (tmp_path / "photos/ant").mkdir(parents=True)
    crafted.make_pipe(tmp_path / "photos/ant/1.jpg")
    opened = data.open(tmp_path / "photos")
    with pytest.raises(data.UnreadableImageError, match=r"1\.jpg cannot be read: it is a pipe or a device"):
        opened.image(0)
    crafted.make_pipe(tmp_path / "photos/images.txt")
    (tmp_path / "photos/image_class_labels.txt").write_text("1 1\n")
    (tmp_path / "photos/classes.txt").write_text("1 ant\n")
    with pytest.raises(OSError, match="it is a pipe or a device and not a file"):
        data.open(tmp_path / "photos")
