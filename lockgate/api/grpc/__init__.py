# SPDX-License-Identifier: Apache-2.0
"""The gRPC services: the agent, and the chunkers of lockgate parts serve."""
