# SPDX-License-Identifier: Apache-2.0
"""The agent's port: which service it has, how it is secured, and who may call. Knows no method's meaning."""

import grpc

from lockgate.api.grpc.agent import AgentMethods
from lockgate.api.grpc.calls import Calls
from lockgate.api.grpc.port import GrpcPort, Line
from lockgate.config.settings import Listener, ServerTlsSettings
from lockgate.errors import CannotListen
from lockgate.gateway import Gateway
from lockgate.protos import POOL
from lockgate.server.addresses import join_address
from lockgate.server.callers import Callers
from lockgate.server.readiness import Readiness


def build_agent_port(
    gateway: Gateway, readiness: Readiness, listener: Listener, callers: Callers | None = None
) -> GrpcPort:
    """The port, taken; other processes of ours may share it. Callers' shares may be shared with other ports."""
    settings = gateway.settings
    calls = Calls(settings.limits, callers or Callers(settings.callers.values()))
    methods = AgentMethods(gateway, calls)
    line = Line(
        settings.limits.agent_request_bytes,
        _load_credentials(settings.server.tls),
        shares=True,
        reflects=POOL,
        is_ready=lambda: readiness.is_ready,
    )
    port = GrpcPort(methods.list_services(), calls, line)
    address = join_address(listener.host, listener.port)
    try:
        port.bind(address)
    except RuntimeError as error:
        raise CannotListen(f"failed to run server: the agent cannot listen on {address}") from error
    return port


def _load_credentials(tls: ServerTlsSettings) -> grpc.ServerCredentials | None:
    """The same files as those of the API port, which have been checked."""
    if tls.cert_path is None or tls.key_path is None:
        return None
    roots = tls.client_ca_cert_path.read_bytes() if tls.client_ca_cert_path is not None else None
    pair = (tls.key_path.read_bytes(), tls.cert_path.read_bytes())
    return grpc.ssl_server_credentials([pair], roots, require_client_auth=roots is not None)
