# SPDX-License-Identifier: Apache-2.0
"""Traces, metrics and the log. Other packages report events here; only this one knows the exporters."""

from lockgate.telemetry.exporters import open_telemetry
from lockgate.telemetry.log import describe_exception, log_event, logger, name_causes, set_up_logging
from lockgate.telemetry.names import LogEvent
from lockgate.telemetry.observers import count_reload, render_metrics
from lockgate.telemetry.requests import (
    IncomingRequest,
    ServiceCall,
    agent_step,
    answer_started,
    calling_aside,
    client_call,
    count_detections,
    count_reconnect,
    count_unreadable_label,
    frame_sent,
    limit_calls,
    note_generation,
    note_stream_ended,
    note_usage,
    observe_held,
    observe_policy,
    observe_request,
    observe_turn,
    start_request,
    trace_headers,
)

__all__ = [
    "IncomingRequest",
    "LogEvent",
    "ServiceCall",
    "agent_step",
    "answer_started",
    "calling_aside",
    "client_call",
    "count_detections",
    "count_reconnect",
    "count_reload",
    "count_unreadable_label",
    "describe_exception",
    "frame_sent",
    "limit_calls",
    "log_event",
    "logger",
    "name_causes",
    "note_generation",
    "note_stream_ended",
    "note_usage",
    "observe_held",
    "observe_policy",
    "observe_request",
    "observe_turn",
    "open_telemetry",
    "render_metrics",
    "set_up_logging",
    "start_request",
    "trace_headers",
]
