# SPDX-License-Identifier: Apache-2.0
"""A real `lockgate parts serve` as a subprocess on free ports, and the settings that lead to its parts."""

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lockgate.config.settings import DetectorSettings, ServiceSettings
from tests.server.processes import COMMAND, ServerProcess, clean_environment
from tests.waits import HANG_S, wait_until


class PartsProcess(ServerProcess):
    """One server of parts."""

    def __init__(
        self, directory: Path, arguments: Sequence[str] = (), variables: Mapping[str, str] | None = None
    ) -> None:
        self.log_path = directory / "parts.log"
        self.error_path = directory / "parts.err"
        command = [*COMMAND, "parts", "serve", "--detectors-port", "0", "--chunkers-port", "0", *arguments]
        environ = clean_environment(**(variables or {}))
        with self.log_path.open("wb") as log, self.error_path.open("wb") as errors:
            self.process = subprocess.Popen(command, cwd=directory, env=environ, stdout=log, stderr=errors)
        self.detectors_port = self.chunkers_port = 0

    def wait_for_start(self) -> None:
        """Until both ports listen."""
        wait_until(lambda: self._is_listening() or self.process.poll() is not None, what="the start")
        assert self.process.poll() is None, self.error_path.read_text() + self.log_path.read_text()
        ports = {event["port"]: int(event["address"].rpartition(":")[2]) for event in self.events("listening")}
        self.detectors_port, self.chunkers_port = ports["detectors"], ports["chunkers"]

    def service(self, port: int) -> ServiceSettings:
        """Settings that lead here."""
        return ServiceSettings("127.0.0.1", port, request_timeout=int(HANG_S))

    def detector(self, kind: Any = "text_contents") -> DetectorSettings:
        """Settings of a detector here."""
        return DetectorSettings(kind, "whole_doc_chunker", 0.5, service=self.service(self.detectors_port))

    def has_logged(self, event: str, **fields: Any) -> bool:
        """Whether an event with these fields is in the log."""
        return any(fields.items() <= line.items() for line in self.events(event))


@contextmanager
def serving_parts(directory: Path, arguments: Sequence[str] = (), **variables: str) -> Iterator[PartsProcess]:
    """A server that listens; at the end it must stop with status 0, without a word on standard error."""
    parts = PartsProcess(directory, arguments, variables)
    try:
        parts.wait_for_start()
        yield parts
    finally:
        status = parts.stop()
    said = parts.error_path.read_text()
    assert (status, said) == (0, ""), (status, said)
