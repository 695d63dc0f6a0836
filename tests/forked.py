"""Run code in processes of its own that have imported torch already, which saves seconds.

They are forks of one process that has done nothing but import.
"""

import multiprocessing
import os
import runpy
import sys

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["torch._dynamo", "tuplet.training"])


def run_forked(function, calls, folder, timeout=300):
    """Call a function in a process for each tuple of arguments, all at a time; return their exit codes and outputs."""
    outputs = [folder / f"output {number}" for number in range(len(calls))]
    processes = [
        _context.Process(target=_call, args=(function, arguments, str(output)))
        for arguments, output in zip(calls, outputs, strict=True)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout)
        process.kill()  # nothing, unless it takes too long
        process.join()
    return [(process.exitcode, output.read_text()) for process, output in zip(processes, outputs, strict=True)]


def run_script(script, folder):
    """Run a script in a folder as `python SCRIPT` does; return its exit code and its output, errors included."""
    (ended,) = run_forked(_run, [(str(script), str(folder))], folder)
    return ended


def _call(function, arguments, output):
    written = os.open(output, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    for stream in (1, 2):
        os.dup2(written, stream)
    function(*arguments)


def _run(script, folder):
    os.chdir(folder)
    sys.argv = [script]
    runpy.run_path(script, run_name="__main__")
