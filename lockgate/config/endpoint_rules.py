# SPDX-License-Identifier: Apache-2.0
"""EndpointRules: the values in which a compatibility mode differs from Lockgate's standard API."""

from dataclasses import dataclass

from lockgate.gate.release import Strategy

NDJSON = "application/x-ndjson"


@dataclass(frozen=True, slots=True)
class EndpointRules:
    """Rules for all endpoints of one gateway. The defaults are those of `compat: none`."""

    has_extensions: bool = True  # serves policies, receipts and the paths that only Lockgate has
    unsuitable_status: int = 400  # the answer when a request names a detector that the endpoint cannot use
    checks_thresholds_first: bool = True  # checks thresholds before a stream begins
    allows_whole_text: bool = True  # whether detectors of whole texts may hold v1 streams and stream-content
    trusts_chunks: bool = False  # uses a chunker's texts and positions without a check
    trusts_findings: bool = False  # uses the lists and places of a remote detector's findings without a check
    strategy: Strategy | None = None  # where releases end; None: by settings and endpoint
    max_open: int = 4  # requests per detector and stream
    batch_contents: int | None = None  # texts per request to a detector; None: by the settings
    line_headers: tuple[tuple[bytes, bytes], ...] = ((b"content-type", NDJSON.encode()),)  # of stream-content answers
    explains_paths: bool = True  # whether 404 and 405 for a path that is not served have a body
    joins_traces: bool = True  # whether requests continue the trace of their caller
    names_failures: bool = True  # errors name the service that failed; else most have one general text
    resends: bool = True  # a request that is lost with an idle connection of a service is sent once more
    limits_silence: bool = True  # the time limit of a model's answer counts for each pause of a stream
    requires_count: bool = False  # a blocked prompt whose tokens cannot be counted is an error
    skips_events: bool = True  # skips events of a model's stream that are no part of its answer, such as pings
    stop_timeout_s: float | None = 30.0  # how long open requests may take after a stop signal; None: no limit


DEFAULT_RULES = EndpointRules()
