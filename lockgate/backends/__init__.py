# SPDX-License-Identifier: Apache-2.0
"""Clients of remote services, one file each, and the databases below index and sessions."""
