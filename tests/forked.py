"""Run a script in a process of its own that has imported torch already, which saves seconds.

The process is a fork of one that has done nothing but import.
"""

import multiprocessing
import os
import runpy
import sys

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tuplet.training"])


def run_script(script, folder, timeout=300):
    """Run a script in a folder as `python SCRIPT` does; return its exit code and its output, errors included."""
    output = folder / "output of the script"
    process = _context.Process(target=_run, args=(str(script), str(folder), str(output)))
    process.start()
    process.join(timeout)
    process.kill()  # nothing, unless it takes too long
    process.join()
    return process.exitcode, output.read_text()


def _run(script, folder, output):
    os.chdir(folder)
    written = os.open(output, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    for stream in (1, 2):
        os.dup2(written, stream)
    sys.argv = [script]
    runpy.run_path(script, run_name="__main__")
