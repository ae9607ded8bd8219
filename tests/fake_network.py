"""What lies between a feed's publisher and its subscriber: connections that break, messages that are lost."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import zmq


class TcpRelay:
    """Forwards connections to `target`, which may change; `cut` breaks those that there are."""

    def __init__(self, target: str) -> None:
        self.target = target
        self._open: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        for end in self._open:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        self._open.clear()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                host, _, port = self.target.removeprefix("tcp://").rpartition(":")
                try:
                    far = socket.create_connection((host, int(port)))
                except OSError:
                    near.close()
                    continue
                self._open += [near, far]
                for ends in ((near, far), (far, near)):
                    threading.Thread(target=_pump, args=ends, daemon=True).start()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
    for end in (source, sink):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


class PulseRelay:
    """Publishes again what a feed publishes, as `pass_on` makes it: any number of frames for each."""

    def __init__(self, target: str, pass_on: Callable[[bytes], list[bytes]]) -> None:
        self._pass_on = pass_on
        self._context: zmq.Context[Any] = zmq.Context()
        self._source = self._context.socket(zmq.SUB)
        self._source.subscribe(b"")
        self._source.connect(target)
        self._sink = self._context.socket(zmq.PUB)
        self._sink.bind("tcp://127.0.0.1:0")
        self.address = self._sink.getsockopt_string(zmq.LAST_ENDPOINT)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._ending.set()
        self._thread.join()
        self._context.term()

    def _run(self) -> None:
        while not self._ending.is_set():
            if self._source.poll(20):
                for frame in self._pass_on(self._source.recv()):
                    self._sink.send(frame)
        self._source.close(linger=0)
        self._sink.close(linger=0)
