# SPDX-License-Identifier: Apache-2.0
"""The guarded request: one path from the input to the receipt, used by every API."""
