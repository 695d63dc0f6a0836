"""Files that are written whole, with the permissions of any new file."""

import os

import pytest
import torch
from safetensors.torch import save_file

from tuplet.atomic import write_atomic


@pytest.fixture
def narrow():
    """A umask that keeps others out, for a while."""
    before = os.umask(0o027)
    yield
    os.umask(before)


@pytest.mark.usefixtures("narrow")
def test_a_written_file_has_the_permissions_of_a_new_one(tmp_path):
    path = tmp_path / "file"
    write_atomic(path, lambda part: save_file({"x": torch.zeros(3)}, part))
    assert path.stat().st_mode & 0o777 == 0o640
    (tmp_path / "new").touch()
    assert (tmp_path / "new").stat().st_mode == path.stat().st_mode


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")

    def fail(part):
        part.write_text("half")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match=r"could not be written \(No space left on device\); make room, then call again"):
        write_atomic(path, fail)
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
    assert path.read_text() == "old"
