"""Kernels forked off one process that has the large libraries, so that each begins in no time.

What a cell imports is as it would be, but that these libraries need no reading; nothing of this repository
is among them. Kernels that a server starts are those of `tests/browser` and of `make site`.
"""

import atexit
import json
import os
import select
import signal
import subprocess
import sys

LIBRARIES = "ipykernel.kernelapp", "matplotlib.figure", "torch", "torchvision", "pyarrow", "h5py"


class Kernels:
    """Starts kernels, in the place of jupyter_client's `launch_kernel`."""

    def __init__(self):
        environment = os.environ | {"MPLBACKEND": "module://matplotlib_inline.backend_inline"}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self._server = subprocess.Popen([sys.executable, __file__], text=True, env=environment, **pipes)

    def __call__(self, command, *, env, cwd, **_):
        """Start what `python -m ipykernel_launcher …` would."""
        self._server.stdin.write(json.dumps([command[3:], env, str(cwd)]) + "\n")
        self._server.stdin.flush()
        return Kernel(int(self._server.stdout.readline()))

    def close(self):
        """End the process off which kernels are forked."""
        with self._server:
            self._server.stdin.close()


class Kernel:
    """What jupyter_client asks of a process."""

    stdin = stdout = stderr = None

    def __init__(self, pid):
        self.pid, self._handle = pid, os.pidfd_open(pid)

    def poll(self):
        """None while it runs."""
        return 0 if select.select([self._handle], [], [], 0)[0] else None

    def wait(self):
        """Wait for its end."""
        select.select([self._handle], [], [])
        os.close(self._handle)
        return 0

    def send_signal(self, number):
        """Send it a signal."""
        signal.pidfd_send_signal(self._handle, number)

    def terminate(self):
        """End it, when it is slow to end by itself."""
        self.send_signal(signal.SIGTERM)


def serve():
    """Fork a process for each line that comes in; only what is forked returns."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them here
    for line in sys.stdin:
        if os.fork():
            continue
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()  # before anybody who hears its number may send a signal to its group
        print(os.getpid(), flush=True)
        os.dup2(2, 1)
        arguments, environment, folder = json.loads(line)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        sys.argv[1:] = arguments
        return
    os._exit(0)


if __name__ == "__main__":
    del sys.path[0]  # this folder
    os.environ["JPY_PARENT_PID"] = str(os.getpid())  # a kernel ends with its parent
    for name in LIBRARIES:
        __import__(name)
    serve()
    from ipykernel import kernelapp

    try:
        kernelapp.launch_new_instance()
    finally:
        atexit._run_exitfuncs()
        os._exit(0)  # taking PyTorch apart takes two seconds
