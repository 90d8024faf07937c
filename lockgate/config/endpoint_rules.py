# SPDX-License-Identifier: Apache-2.0
"""EndpointRules: the values in which a compatibility mode differs from Lockgate's own API."""

from dataclasses import dataclass

from lockgate.gate.release import Strategy

NDJSON = "application/x-ndjson"


@dataclass(frozen=True, slots=True)
class EndpointRules:
    """Rules that hold for all endpoints of one gateway. The defaults are Lockgate's own."""

    has_extensions: bool = True  # serves policies, receipts and the paths that only Lockgate has
    unsuitable_status: int = 400  # answered for a detector that the endpoint cannot use
    checks_thresholds_first: bool = True  # before a stream begins
    allows_whole_text: bool = True  # whether detectors of whole texts may hold v1 streams and stream-content
    trusts_chunks: bool = False  # takes text and places from the chunker as it reports them
    strategy: Strategy | None = None  # where releases end; None: as settings and endpoint say
    max_open: int = 4  # requests per detector and stream
    batch_contents: int | None = None  # texts per request to a detector; None: as the settings say
    line_headers: tuple[tuple[bytes, bytes], ...] = ((b"content-type", NDJSON.encode()),)  # of stream-content answers
    joins_traces: bool = True  # whether requests continue the trace of their caller
    stop_timeout_s: float | None = 30.0  # how long open requests may take after a stop signal; None: no limit


OWN_RULES = EndpointRules()
