"""Train, killed before the n-th change of the disk, then resume; for many n. Usage: this FOLDER SHARE.

Each run is a fork of this process, which itself never trains: torch's threads would not survive a fork. SHARE is the
part of the changes at which to kill.
"""

import json
import os
import shutil
import signal
import sys
from contextlib import suppress
from pathlib import Path

import torch
import torch._dynamo  # which every fork would otherwise import again

from training_tools import events, same, vectors, weights
from tuplet import training

OPTIONS = {"loss": "raw", "dim": 5, "batch_size": 12, "per_class": 3, "schedule": "constant", "device": "cpu"}
OPTIONS |= {"steps": 6, "evaluate_every": 2, "checkpoint_every": 2, "log_every": 2, "lr": 0.05}
#: The calls by which a folder changes: a kill between any two of them is one of these moments.
CHANGES = ("replace", "rename", "unlink", "rmdir", "mkdir", "fsync")


def die_at(number):
    """Kill this process before its change of that number."""
    left = [number]

    def dying(change):
        def changed(*arguments, **options):
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left[0] -= 1
            return change(*arguments, **options)

        return changed

    for name in CHANGES:
        setattr(os, name, dying(getattr(os, name)))


def train(folder, kill_at=None):
    """Train in a fork; return True if it ended by itself."""
    child = os.fork()
    if child == 0:
        if kill_at is not None:
            die_at(kill_at)
        training.train(DATA, folder, **OPTIONS)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return False
    assert os.WEXITSTATUS(status) == 0
    return True


def saved(folder):
    """Return the weights of the best and the last embedder; those that cannot be read are None."""
    found = {}
    for name in ("best", "last"):
        with suppress(FileNotFoundError):
            found[name] = weights(folder, name)
    return found


def main(folder, share):
    truth = folder / "uninterrupted"
    assert train(truth)
    expected, kills, moment, before = saved(truth), 0, 0, {}
    while True:
        run = folder / "killed"
        shutil.rmtree(run, ignore_errors=True)
        if train(run, moment):
            break
        kills += 1
        found = saved(run)
        assert found.keys() >= before.keys(), f"a kill at change {moment} loses {before.keys() - found.keys()}"
        before = found
        assert train(run)
        assert all(same(weights(run, name), expected[name]) for name in expected)
        steps = [event["step"] for event in events(run, "train")]
        assert steps == [event["step"] for event in events(truth, "train")]
        assert not list(run.glob("**/*.part")) + list(run.glob("**/*.new")) + list(run.glob("best.*"))
        moment += max(1, round(1 / share))
    print(json.dumps({"kills": kills}))


if __name__ == "__main__":
    torch.set_num_threads(1)
    DATA = vectors()
    main(Path(sys.argv[1]), float(sys.argv[2]))
