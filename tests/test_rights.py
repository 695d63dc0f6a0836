"""The rights of what is written follow the umask, which nobody else sees change."""

import os
from pathlib import Path

import pytest

from tuplet import rights


@pytest.fixture
def narrow():
    """A umask that keeps others out, for a while."""
    before = os.umask(0o027)
    yield
    os.umask(before)


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize("system", ["Linux", "another"])
def test_a_file_gets_the_rights_that_a_new_one_has(tmp_path, monkeypatch, system):
    if system == "another":
        monkeypatch.setattr(rights, "_STATUS", Path("/nowhere"))
    path = tmp_path / "file"
    path.touch(0o600)
    rights.like_any_new_file(path)
    assert path.stat().st_mode & 0o777 == 0o640
    (tmp_path / "new").touch()
    assert (tmp_path / "new").stat().st_mode == path.stat().st_mode


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux tells the umask without a change")
def test_the_umask_is_read_and_not_changed(tmp_path, monkeypatch):
    """A file that another thread makes meanwhile would be open to everybody."""
    monkeypatch.setattr(os, "umask", lambda mask: pytest.fail(f"the umask was set to {mask:o}"))
    path = tmp_path / "file"
    path.touch()
    rights.like_any_new_file(path)
