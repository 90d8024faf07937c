# SPDX-License-Identifier: Apache-2.0
"""What tests of embedded parts share."""

from tests.weights import weights_dir

__all__ = ["weights_dir"]
