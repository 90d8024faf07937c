# SPDX-License-Identifier: Apache-2.0
"""Session stores under processes that die at any moment."""
