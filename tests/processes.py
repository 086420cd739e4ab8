"""Processes that begin at once: forks of one that has imported torch, CuTe and the package, and has done nothing else.

A command of the cookbook takes a second to import what it needs, often longer than what it is asked. `run` is
`subprocess.run` for such commands: arguments, folder, environment, streams and status are the process's own. Only
modules are there already. So a test of imports, or of another copy of the package, starts a process of its own.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import os
import resource
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

PRELOADED = (
    "numpy",
    "torch",
    "cutlass.cute",
    "cookbook.cli.app",
    "cookbook.cli.kernels",
    "cookbook.check.levels",
    "cookbook.check.workers",
)
STREAMS = ("stdin", "stdout", "stderr")
LONGEST = 300  # seconds
_HEAD = 8  # digits


def run(
    *arguments: object, cwd: Any = None, env: dict[str, str] | None = None, cpu: int = LONGEST, **streams: int
) -> subprocess.CompletedProcess[str]:
    """Run `python *arguments`, as `subprocess.run` does with `text=True`.

    Args:
        arguments: `"-m"` and a module, `"-c"` and code, or a file; then its arguments.
        cwd: its folder; this process's if left out.
        env: its environment; this process's if left out.
        cpu: seconds of processor time that it may take.
        **streams: open files, by their numbers, for STREAMS. Output that is not among them is captured.
    """
    words = [str(each) for each in arguments]
    ask = {"arguments": words, "cwd": str(cwd or Path.cwd()), "env": dict(env or os.environ), "cpu": cpu}
    body = json.dumps(ask).encode()
    with contextlib.ExitStack() as stack:
        nothing = stack.enter_context(open(os.devnull))
        rest = [name for name in STREAMS[1:] if name not in streams]
        captured = {name: stack.enter_context(tempfile.TemporaryFile("w+")) for name in rest}
        files = {"stdin": nothing.fileno(), **{name: file.fileno() for name, file in captured.items()}, **streams}
        socket.send_fds(_server(), [f"{len(body):0{_HEAD}}".encode()], [files[name] for name in STREAMS])
        _server().sendall(body)
        status = int(_exactly(_server(), _HEAD))
        said = {name: _read(file) for name, file in captured.items()}
    return subprocess.CompletedProcess([sys.executable, *words], status, said.get("stdout"), said.get("stderr"))


def _read(file: Any) -> str:
    file.seek(0)
    return file.read()


@cache
def _server() -> socket.socket:
    """The process that forks, begun when first asked for; it ends with this one."""
    ours, theirs = socket.socketpair()
    command = [sys.executable, __file__, str(theirs.fileno())]
    env = os.environ | dict.fromkeys(("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"), "1")
    process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=env, stdin=subprocess.DEVNULL)
    theirs.close()
    atexit.register(process.wait)
    atexit.register(ours.close)  # first
    return ours


def _exactly(connection: socket.socket, size: int) -> bytes:
    got = b""
    while len(got) < size:
        some = connection.recv(size - len(got))
        if not some:
            raise EOFError("the process that forks has ended")
        got += some
    return got


# --- the process that forks -------------------------------------------------------------------------------------------


def serve(connection: socket.socket) -> None:
    """Fork for each request, and say how the fork ended."""
    for name in PRELOADED:
        importlib.import_module(name)
    threads = len(os.listdir("/proc/self/task"))
    assert threads == 1, f"PRELOADED: got {threads} threads; needed 1, as a fork has no others"
    while True:
        head, files, *_ = socket.recv_fds(connection, _HEAD, len(STREAMS))
        if not head:
            return
        ask = json.loads(_exactly(connection, int(head + _exactly(connection, _HEAD - len(head)))))
        child = os.fork()
        if not child:
            connection.close()
            os._exit(_as_python(files, **ask))
        for file in files:
            os.close(file)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        connection.sendall(f"{status:0{_HEAD}}".encode())


def _as_python(files: list[int], arguments: list[str], cwd: str, env: dict[str, str], cpu: int) -> int:
    """Do what `python` does with these arguments, to its end; the exit status."""
    signal.alarm(LONGEST)
    resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu))
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    sys.stdin = sys.__stdin__ = open(0)  # noqa: SIM115
    sys.stdout = sys.__stdout__ = open(1, "w")  # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(2, "w", buffering=1, errors="backslashreplace")  # noqa: SIM115
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    first, *rest = arguments
    here = os.path.dirname(os.path.abspath(first)) if first not in ("-m", "-c") else cwd if first == "-m" else ""
    sys.path[0:1] = [here, *filter(None, env.get("PYTHONPATH", "").split(os.pathsep))]
    try:
        status = _ended(first, rest)
    finally:
        threading._shutdown()  # pyright: ignore[reportAttributeAccessIssue]
        atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
    except OSError:
        return 120  # as Python has it
    return status


def _ended(first: str, rest: list[str]) -> int:
    try:
        if first == "-m":
            sys.argv = ["-m", *rest[1:]]
            runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        elif first == "-c":
            sys.argv = ["-c", *rest[1:]]
            main = sys.modules["__main__"] = ModuleType("__main__")
            exec(compile(rest[0], "<string>", "exec"), main.__dict__)
        else:
            sys.argv = [first, *rest]
            runpy.run_path(first, run_name="__main__")
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as asked:
        serve(asked)
